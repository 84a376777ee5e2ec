"""One rank of a job that gets its plan from rank 0; prints what came of it as a JSON line."""

import argparse
import json
import os
import signal
import time

import torch.distributed as dist

from planner.schema import Plan, ShardwrightError
from runtime_client.agreement import check_same_plan, share_plan
from runtime_client.client import PlanClient, load_plan


def get(arguments: argparse.Namespace) -> Plan:
    match arguments.case:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "slow":
            time.sleep(8)
        case "away":
            return PlanClient("http://127.0.0.1:9", deadline_s=1, cache_dir=arguments.cache).active("nothing")
    return load_plan(arguments.plans[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("cache")
    parser.add_argument("plans", nargs="+")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    start = time.monotonic()
    try:
        if arguments.case == "differ":
            plan = load_plan(arguments.plans[dist.get_rank() % 2])
        else:
            plan = share_plan(lambda: get(arguments), deadline_s=4)
        if arguments.case != "slow":
            check_same_plan(plan.body)
        answer = {"plan": plan.envelope.plan_id}
    except ShardwrightError as error:
        answer = {"error": error.code, "message": str(error)}
    print(json.dumps(answer | {"seconds": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    main()
