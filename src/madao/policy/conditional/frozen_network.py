"""The network of a frozen policy."""

from torch import Tensor, nn

from madao.policy.conditional.features import NAMES
from madao.policy.conditional.network import Layers, Network
from madao.policy.conditional.rows import rows_of_features
from madao.policy.policy_tables import PolicyTables


class FrozenNetwork(nn.Module):
    """The numbers of a `Network` as buffers, without a state to save."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        for name, tensor in network.tensors()._asdict().items():
            self.register_buffer(name, tensor, persistent=False)

    def tables(self, shared: PolicyTables, condition: Tensor | None, count: int) -> PolicyTables:
        """Return the tables for `count` images with these features, from log π, p and μ of the spec."""
        found, rows = rows_of_features(condition, count, len(NAMES))
        device = shared.selection.device
        layers = Layers(*(self.get_buffer(name).to(device) for name in Layers._fields))
        selection, application, magnitude = layers.departures(found)
        return PolicyTables(
            (shared.selection + selection).log_softmax(-1),
            (shared.application.logit() + application).sigmoid(),
            (shared.magnitude.logit() + magnitude).sigmoid(),
            rows,
        )
