"""What `import ratekeeper` loads: as little as possible."""

import subprocess
import sys

HEAVY = {"asyncio", "redis", "sqlite3", "argparse", "json", "hashlib", "http", "socket", "subprocess", "ssl"}


def test_what_is_not_always_needed_is_imported_when_it_is_used():
    code = "import sys, ratekeeper; print(*{name.partition('.')[0] for name in sys.modules})"
    said = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=own_path()
    )
    assert set(said.stdout.split()) & HEAVY == set()


def own_path():
    """Find the package without the start-up files of site, which may import anything."""
    import ratekeeper

    return {"PYTHONPATH": ratekeeper.__file__.rpartition("/ratekeeper/")[0]}
