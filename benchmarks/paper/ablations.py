"""Compare parts of the method (not in the paper): CIFAR-10, WideResNet-28-2, one number of epochs per column.

The rows are, in order: methods that do not learn; the paper's settings with one change (influence instead of the
relaxation, no products with the Hessian, or each step up or down the gradient by a fair coin); madao's own estimator
with influence along v, without training gradients (deflated), or by conjugate gradients; and remedies against greed,
narrow policies and strong policies.
"""

from pathlib import Path

from entries import SHORT, SHORTER, Entry, main, markdown, paired

ROWS = {
    "base": "crop, flip, Cutout",
    "uncut": "the same without Cutout",
    "restarted": "the same with Cutout and a warm restart halfway",
    "uniform": "every operation equally",
    "uniform-varied": "the same, any strength up to that at the start",
    "uniform-gentle": "the same, a tenth of the ranges",
    "uniform-moderate": "the same, three tenths of the ranges",
    "beyond": "a policy made of looks at three trainings on few photos (beyond.json)",
    "pooled": "a policy made of looks at many trainings on few photos (pooled.json)",
    "learned-before": "what deflated learned in 200 epochs, from the start (learned.json)",
    "same-loss-before": "what same-loss learned in sixty epochs, from the start (same-loss.json)",
    "uniform-all": "every operation equally, on all 50,000 images",
    "learned-before-all": "learned.json, on all 50,000 images",
    "trivialaugment": "TrivialAugment",
    "autoaugment-cifar10": "AutoAugment",
    "randaugment": "RandAugment, tuned",
    "randaugment-mild": "RandAugment at 0.06",
    "learned": "the paper's: relaxed, Neumann J = 5",
    "influence": "influence, Neumann J = 5",
    "identity": "relaxed, no products",
    "random-sign": "relaxed, Neumann J = 5, random sign",
    "along-v": "influence on 2048 images, no products",
    "deflated": "the same, deflated",
    "gauss-newton": "the same, conjugate gradients",
    "which": "deflated, which operations only",
    "strength": "deflated, how often and how strongly, all operations alike",
    "late": "deflated, in the second half only",
    "averaged": "deflated, at averaged weights",
    "pulled": "deflated, drawn back to the start",
    "same-loss": "deflated, beyond the loss (recipe -plus)",
    "swift": "deflated, steps three times as long",
    "rmsprop": "deflated, the paper's optimizer of the policy",
    "stages-4": "deflated, four operations an image",
    "varied": "deflated, any strength up to the learned one",
    "same-loss-varied": "deflated, both of these: beyond the loss, any strength",
    "gentle": "deflated, from a tenth of the ranges",
}
REFERENCES = ("randaugment", "trivialaugment", "uniform", "base", "deflated", "learned", "autoaugment-cifar10")
"""What learning has to beat, and what is being made better."""
ONLY_LONG = {"uncut", "restarted", "uniform-gentle", "autoaugment-cifar10", "randaugment-mild", "gentle"}
"""Of these a shorter schedule would answer another question, or they were found for a longer one."""
BOTH = {
    *("base", "uniform", "beyond", "pooled", "trivialaugment", "randaugment", "learned"),
    *("deflated", "same-loss", "varied", "same-loss-varied"),
}
"""What is told in both columns."""
ENTRIES = [
    SHORTER.only(*(method for method in ROWS if method not in ONLY_LONG)),
    Entry("cifar10-wrn-28-2", [method for method in ROWS if method in ONLY_LONG | BOTH]),
]


def rebuild(results: Path, _: Path) -> str:
    cells = [entry.cells(results) for entry in ENTRIES]
    rows = [["test error, %", f"{SHORT} epochs", "200 epochs"], ["---"] * 3]
    for method, title in ROWS.items():
        told = (entry.told(method, found) for entry, found in zip(ENTRIES, cells, strict=True))
        rows.append([title, *told])
    measures = ("test_error", "validation_error")
    differences = (paired(entry, results, ROWS, REFERENCES, measure) for entry in ENTRIES for measure in measures)
    return "\n\n".join(table for table in (markdown(rows), *differences) if table)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
