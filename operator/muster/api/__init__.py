"""The TrainingJob API: types, defaults, validation, and the CRD generated from them. Imports nothing else of Muster."""
