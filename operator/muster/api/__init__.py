"""The TrainingJob API: types, defaults, validation, and the CRD made from them. Imports nothing else of Muster."""
