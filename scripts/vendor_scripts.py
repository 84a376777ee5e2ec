"""Fetch the dashboard's scripts with npm, or check that those in the repository are what the manifest says."""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "api" / "dashboard" / "static" / "vendor"
MANIFEST = "manifest.json"
PACKAGES = (
    {"name": "htmx.org", "version": "4.0.1", "licence": "0BSD", "files": {"dist/htmx.min.js": "htmx.min.js"}},
    {
        "name": "echarts",
        "version": "6.1.0",
        "licence": "Apache-2.0",
        "files": {"dist/echarts.min.js": "echarts.min.js"},
        "notices": {"NOTICE": "echarts.NOTICE", "licenses/LICENSE-d3": "echarts.LICENSE-d3"},
    },
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="fetch nothing; fail when a file is not the one listed"
    )
    if parser.parse_args().check:
        return check()
    FOLDER.mkdir(parents=True, exist_ok=True)
    listed = [entry for package in PACKAGES for entry in fetch(package)]
    (FOLDER / MANIFEST).write_text(json.dumps(listed, indent=1) + "\n")
    return 0


def check() -> int:
    listed = json.loads((FOLDER / MANIFEST).read_text())
    wrong = [entry["file"] for entry in listed if _digest(FOLDER / entry["file"]) != entry["sha256"]]
    known = {entry["file"] for entry in listed} | {MANIFEST}
    wrong += sorted(path.name for path in FOLDER.iterdir() if path.name not in known)
    for name in wrong:
        print(
            f"{FOLDER / name} is not what {MANIFEST} says; run: python scripts/vendor_scripts.py", file=sys.stderr
        )
    return bool(wrong)


def fetch(package: dict) -> list[dict]:
    wanted = {**package["files"], "LICENSE": f"{package['name']}.LICENSE", **package.get("notices", {})}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        spec = f"{package['name']}@{package['version']}"
        command = ["npm", "pack", "--silent", "--ignore-scripts", spec]
        packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
            for inside, name in wanted.items():
                content = archive.extractfile(f"package/{inside}")
                assert content is not None, f"{spec} has no {inside}"
                (FOLDER / name).write_bytes(content.read())
                about = {key: package[key] for key in ("name", "version", "licence")}
                found.append({**about, "from": inside, "file": name, "sha256": _digest(FOLDER / name)})
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
