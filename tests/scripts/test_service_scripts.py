"""The scripts that make and try the image, and the files that use them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from api.cli.__main__ import main
from api.settings import Settings

ROOT = Path(__file__).parents[2]
STEPS = ("scripts/install_service.sh", "scripts/check_service.sh")


def _settings_of(text: str) -> set[str]:
    return {name.lower() for name in re.findall(r"SHARDWRIGHT_([A-Z_]+)", text)}


def test_the_service_check_passes_here() -> None:
    bin_folder = Path(sys.executable).parent
    if not (bin_folder / "shardwright").exists():
        pytest.skip("the package is not installed")
    done = subprocess.run(
        [ROOT / STEPS[1], bin_folder], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["the service is all right"]), done.stderr


def test_image_and_ci_run_the_same_steps() -> None:
    image, ci = (ROOT / "Dockerfile").read_text(), (ROOT / ".ci" / "run").read_text()
    for step in STEPS:
        assert step in image
        assert step in ci
        assert (ROOT / step).stat().st_mode & 0o111
    assert "pip install" not in image


def test_the_composition_uses_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    composition = yaml.safe_load(text)
    services = composition["services"]
    assert set(services) == {"api", "worker", "postgres", "prometheus"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    for name in ("api", "worker"):
        command, *_ = services[name]["command"]
        assert main([command, "--help"]) == 0
        assert command in capsys.readouterr().out
        assert _settings_of(" ".join(services[name]["environment"])) <= set(Settings.model_fields)
    for file in ("Dockerfile", "docker-compose.yml", "docs/security.md", "docs/operations.md"):
        named = {name for name in _settings_of((ROOT / file).read_text()) if not name.startswith("_")}
        unknown = named - set(Settings.model_fields) - {"url", "api_key", ""}
        assert not unknown, file
    (config,), (secret,) = services["prometheus"]["configs"], services["prometheus"]["secrets"]
    key_file = composition["secrets"][secret]["file"].removeprefix(".")
    assert key_file in (ROOT / ".gitignore").read_text().splitlines()
    scraped = yaml.safe_load(composition["configs"][config["source"]]["content"])["scrape_configs"]
    assert scraped[0]["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert [job["dns_sd_configs"][0]["names"] for job in scraped] == [["api"], ["worker"]]
    assert services["worker"]["environment"]["SHARDWRIGHT_METRICS_PORT"] == str(
        scraped[1]["dns_sd_configs"][0]["port"]
    )
