"""Why an optimizer refuses a parameter."""

from torch import Tensor

from planner.schema.errors import ShardwrightError


class CutParameter(ShardwrightError):
    """A rank boundary lies where the optimizer cannot work on the two sides apart."""

    code = "cut_parameter"

    def __init__(self, optimizer: str, name: str, parameter: Tensor, needs: str) -> None:
        super().__init__(
            f"{optimizer}: parameter {name!r} of shape {tuple(parameter.shape)} is cut between ranks, but {needs}. "
            "Give it that atom when planning the layout, an owner, or to another optimizer."
        )


class UnknownOwner(ShardwrightError):
    """Owners do not fit the parameters."""

    code = "unknown_owner"


def name_of(group: dict[str, object], place: int) -> str:
    """Name of a parameter in a group, which knows it when it was built from `named_parameters()`."""
    names = group.get("param_names")
    return str(names[place]) if isinstance(names, list) else f"params[{place}]"
