"""What `shardwright profile` does under torchrun, with the arguments of this script; and a model for it."""

import sys

from api.cli.__main__ import main
from runtime_client.describe import TrainingExample, token_inputs
from tests.real.llama import Llama


def build() -> TrainingExample:
    return TrainingExample(model=Llama(), inputs=token_inputs)


if __name__ == "__main__":
    sys.argv = ["shardwright", *sys.argv[1:]]
    main()
