"""What to do about an operation of torch whose result, or whose derivative, is not finite."""

from __future__ import annotations

from ncclcheck.reports.judgement.findings import Remedy, you

_OPERATIONS = {
    "log": (
        "A logarithm of 0 or less: keep its argument away from 0; of a softmax take log_softmax of the scores.",
        "torch.log(x.clamp_min(1e-8))",
    ),
    "sqrt": ("A root of a number below 0, or of 0 in backward.", "torch.sqrt(x.clamp_min(1e-8))"),
    "div": ("A division by 0: keep the divisor away from it.", "x / (count.clamp_min(1))"),
    "exp": ("It overflows: subtract the largest value first, or limit it.", "torch.exp(x.clamp(max=20))"),
    "softmax": ("Every entry of a row is masked: let each row keep one.", "mask[mask.all(-1)] = False"),
    "cross_entropy": (
        "Scores are infinite, or every target of a batch is ignore_index: then the mean is 0 / 0.",
        "loss = F.cross_entropy(x, y, reduction='sum') / (y != -100).sum().clamp_min(1)",
    ),
    "mean": ("A mean over nothing: a mask or a filter left no entry.", "x.sum() / max(1, x.numel())"),
    "std": ("The deviation of a single entry is NaN.", "x.std(unbiased=False)"),
    "norm": ("The derivative of a norm at 0 is not finite.", "torch.sqrt(x.square().sum(-1) + 1e-12)"),
    "pow": ("A power of 0 or of a number below 0.", "x.clamp_min(1e-8) ** p"),
}
_ALIASES = {
    "__truediv__": "div",
    "true_divide": "div",
    "__rtruediv__": "div",
    "log_softmax": "softmax",
    "var": "std",
    "log2": "log",
    "log10": "log",
    "rsqrt": "sqrt",
    "vector_norm": "norm",
    "__pow__": "pow",
    "divide": "div",
    "scaled_dot_product_attention": "softmax",
    "nll_loss": "cross_entropy",
    "reciprocal": "div",
    "std_mean": "std",
    "expm1": "exp",
    "nanmean": "mean",
    "cdist": "norm",
    "pairwise_distance": "norm",
}


def fix(operation: str, line: str) -> Remedy:
    """By the name of torch's function, which may be unknown or empty; line: the user's, empty where unknown."""
    known = _OPERATIONS.get(_ALIASES.get(operation, operation))
    see = f" See {line}." if line else ""
    if known:
        return you(f"{known[0]}{see}", known[1])
    return you(
        "Its derivative divides by 0, or what goes in is out of range: a root or norm of 0, or a torch.where over "
        f"a branch that is NaN.{see}",
        "with torch.autograd.set_detect_anomaly(True):\n    loss.backward()",
    )
