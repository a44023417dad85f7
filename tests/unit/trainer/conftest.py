"""Both frameworks in one process, as only these tests have them."""

# torch's compiler loads an LLVM of its own with its first optimizer, and the process aborts where TensorFlow's is there already.
import torch._dynamo  # noqa: F401
