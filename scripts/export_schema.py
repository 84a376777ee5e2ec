"""Write the JSON schema of every document of the contract to docs/schema/, or check that they are up to date."""

import argparse
import sys
from pathlib import Path

from api.cli.schema import documents, schema_text

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schema"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    only_check = parser.parse_args().check
    wanted = {FOLDER / f"{kind}.json": schema_text(document) for kind, document in documents().items()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += sorted(set(FOLDER.glob("*.json")) - set(wanted))
    if only_check:
        for path in stale:
            print(f"docs/schema/{path.name} is out of date; run: make schema", file=sys.stderr)
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        if path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
