"""One descriptor for each strategy: its roles, ports and checks, and the variables of its framework, such as TF_CONFIG
(`tf_config.py`). `base.py` has the parts of a descriptor."""
