"""Kernels behind `scaled_dot_product_attention`; which one runs is the device's choice."""

FUSED_ATTENTION = tuple(
    f"_scaled_dot_product_{kernel}"
    for kernel in (
        "flash_attention",
        "flash_attention_for_cpu",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
    )
)
"""Names in the namespace `aten`."""


def is_fused_attention(name: str) -> bool:
    """Whether an operation, written `aten.name.overload`, is one of them."""
    namespace, _, rest = name.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in FUSED_ATTENTION
