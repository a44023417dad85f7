"""Plants the bug that `make mutants` asks for."""

import os

if _mutant := os.environ.get("MUSTER_MUTANT"):
    from tests.mutants.mutants import plant

    plant(_mutant)
