"""Compare parts of the method (not in the paper): CIFAR-10, WideResNet-28-2, one number of epochs per column.

The rows are, in order: methods that do not learn; the paper's settings with one change (influence instead of the
relaxation, no products with the Hessian, or each step up or down the gradient by a fair coin); madao's own estimator
with influence along v, without training gradients (deflated), or by conjugate gradients; and remedies against greed,
narrow policies and strong policies.
"""

from pathlib import Path

from entries import SHORT, SHORTER, Entry, main, markdown, paired

ROWS = {
    "base": "base augmentation (crop, flip, Cutout)",
    "uncut": "the same without Cutout",
    "restarted": "the same with Cutout and a warm restart halfway",
    "uniform": "uniform policy",
    "uniform-varied": "the same, any strength up to 0.62 of the ranges",
    "uniform-gentle": "the same, 0.1 of the ranges",
    "uniform-moderate": "the same, 0.3 of the ranges",
    "beyond": "fixed, from influences in three trainings on few photos (beyond.json)",
    "pooled": "fixed, from influences in many trainings on few photos (pooled.json)",
    "learned-before": "fixed, learned before by deflated in 200 epochs (learned.json)",
    "same-loss-before": "fixed, learned before by same-loss in sixty epochs (same-loss.json)",
    "uniform-all": "uniform policy, on all 50,000 images",
    "learned-before-all": "learned.json, on all 50,000 images",
    "trivialaugment": "TrivialAugment",
    "autoaugment-cifar10": "AutoAugment",
    "randaugment": "RandAugment tuned",
    "randaugment-mild": "RandAugment at 0.06",
    "learned": "the paper's: relaxed, Neumann J = 5",
    "influence": "influence, Neumann J = 5",
    "identity": "relaxed, no products",
    "random-sign": "relaxed, Neumann J = 5, random sign",
    "along-v": "influence on 2048 images, no products",
    "deflated": "the same, deflated",
    "gauss-newton": "the same, conjugate gradients",
    "which": "deflated, selection only",
    "strength": "deflated, application and magnitude only",
    "late": "deflated, in the second half only",
    "averaged": "deflated, at averaged weights",
    "pulled": "deflated, pulled back to the start",
    "same-loss": "deflated, same-loss (cifar10-wrn-28-2-plus)",
    "swift": "deflated, three times the learning rate",
    "rmsprop": "deflated, the paper's optimizer of the policy",
    "stages-4": "deflated, four operations per image",
    "varied": "deflated, any strength up to the learned one",
    "same-loss-varied": "deflated, same-loss, any strength up to the learned one",
    "gentle": "deflated, starting at 0.1 of the ranges",
}
REFERENCES = ("randaugment", "trivialaugment", "uniform", "base", "deflated", "learned", "autoaugment-cifar10")
"""Methods that the others are compared with."""
ONLY_LONG = {"uncut", "restarted", "uniform-gentle", "autoaugment-cifar10", "randaugment-mild", "gentle"}
"""Methods without a shorter schedule: it would answer another question, or they were chosen for the longer one."""
BOTH = {
    *("base", "uniform", "beyond", "pooled", "trivialaugment", "randaugment", "learned"),
    *("deflated", "same-loss", "varied", "same-loss-varied"),
}
"""Methods in both columns."""
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
