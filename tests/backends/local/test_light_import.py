import subprocess
import sys


def test_importing_the_engine_loads_no_torch() -> None:
    code = "import areal_sdk.backends.local, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
