#!/usr/bin/env bash
# Serve, plan once, sign, back up and stop: scripts/check_service.sh BIN, where BIN holds `shardwright` and `python`.
# The Dockerfile and CI run this same file. Needs neither network nor GPU; leaves nothing behind.
set -euo pipefail

bin=${1:?usage: scripts/check_service.sh BIN}
folder=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
export SHARDWRIGHT_DATABASE_URL="sqlite:///$folder/check.db" SHARDWRIGHT_SIGNING_KEY_FILE="$folder/key.pem"
export NO_PROXY=127.0.0.1

public=$("$bin/shardwright" keys new-signing-key "$folder/key.pem")
SHARDWRIGHT_API_KEY=$("$bin/shardwright" keys create check --scope admin 2>/dev/null)
export SHARDWRIGHT_API_KEY
"$bin/shardwright" serve --port 0 --log-format json 2>"$folder/log" &
server=$!
url=
for _ in $(seq 600); do
    url=$(sed -n 's/.*"url": *"\(http[^"]*\)".*/\1/p' "$folder/log" | head -1)
    test -z "$url" || break
    kill -0 "$server" || { cat "$folder/log" >&2; exit 1; }
    sleep 0.1
done
export SHARDWRIGHT_URL=$url

"$bin/python" -P - "$url" "$public" "$folder" <<'PYTHON'
import json
import os
import sys
import time
from pathlib import Path

import httpx2

from planner.schema import PlanRequest
from runtime_client.client import PlanClient
from api.http.examples import REQUEST

url, public, folder = sys.argv[1:]
key = os.environ["SHARDWRIGHT_API_KEY"]
for _ in range(600):
    try:
        if httpx2.get(f"{url}/readyz").status_code == 200:
            break
    except httpx2.RequestError:
        pass
    time.sleep(0.1)
client = PlanClient(url, api_key=key, trusted_keys=[public], cache_dir=Path(folder) / "cache", deadline_s=300)
found = client.plan(PlanRequest.from_object(REQUEST))
assert not found.stale, found.reason
assert found.plan.body.outcome == "feasible"
(Path(folder) / "plan_id").write_text(found.plan.envelope.plan_id)
headers = {"Authorization": f"Bearer {key}"}
assert "shardwright_solves_total" in httpx2.get(f"{url}/metrics", headers=headers).text
assert httpx2.get(f"{url}/v1/plans").status_code == 401
PYTHON

"$bin/shardwright" lineages add check "$(cat "$folder/plan_id")"
"$bin/shardwright" lineages active check --trusted-key "$public" -o "$folder/plan.json"
"$bin/shardwright" db backup "$folder/backup.db"
kill "$server"
wait "$server" || test $? -eq 143
server=
"$bin/shardwright" db restore "$folder/backup.db"
echo "the service is all right"
