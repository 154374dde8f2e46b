"""cuDNN's recurrent layers: the flat weight buffer, what training keeps, the workspace.

cuDNN answers for the sizes itself, so they are known from outside only. NVIDIA's reference
says on what they depend: the geometry of the network, and the longest sequence and the
batch of the data (cudnnGetRNNTempSpaceSizes), packed or not. pytorch/pytorch#2895
(2017-10-04, P100) printed them for four layers of 320 units on 123 inputs in float32:

========  ==============  ===============
cell      reserve, bytes  workspace, bytes
========  ==============  ===============
LSTM      736,000,000     17,730,560
GRU       864,000,000     13,169,920
========  ==============  ===============

The first column is 25,000 steps times 320 units of 4 bytes times 23 and 27: five values a
layer (four gates and the cell) and the outputs of the three inner layers for LSTM, six and
three for GRU. The second is a copy of every weight matrix and, for a batch of 100, eleven
and eight values a layer: three times the gates less one. Other GPUs and algorithms may
differ, hence the spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

RELU, TANH, LSTM, GRU = range(4)  # cudnnRNNMode_t
_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
# Values that each layer keeps for a unit and a step; of the simple cells, their output.
_KEPT = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}

DROPOUT_STATE = (2 << 20, (2 << 20) + 512, 4 << 20)
"""Low, likely, high bytes of the random states: "slightly over 2MB"
(aten/src/ATen/native/cudnn/RNN.cpp of pytorch/pytorch @ 00fc08aa, get_dropout_state);
one for each thread that a GPU can run, so more on larger ones."""

Span = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrent:
    """One call of cuDNN's recurrent network.

    Attributes:
        mode: `RELU`, `TANH`, `LSTM` or `GRU`.
        hidden: units of a layer and direction; `projection` is their output's size or 0.
        layers, directions: how many.
        steps, batch: longest sequence and number of sequences.
    """

    mode: int
    inputs: int
    hidden: int
    projection: int
    layers: int
    directions: int
    steps: int = 0
    batch: int = 0

    @property
    def gates(self) -> int:
        """Rows of a weight matrix for each unit."""
        return _GATES[self.mode]

    @property
    def width(self) -> int:
        """What a unit of one direction hands on."""
        return self.projection or self.hidden

    def shapes(self, *, biases: bool) -> list[tuple[int, ...]]:
        """Shapes of the parameters in PyTorch's order: layer by layer, direction by direction."""
        rows = self.gates * self.hidden
        found: list[tuple[int, ...]] = []
        for layer in range(self.layers):
            inputs = self.width * self.directions if layer else self.inputs
            for _ in range(self.directions):
                found += [(rows, inputs), (rows, self.width)]
                if biases:
                    found += [(rows,), (rows,)]
                if self.projection:
                    found.append((self.projection, self.hidden))
        return found

    def matrix_elements(self) -> int:
        """Elements of all weight matrices."""
        return sum(prod(shape) for shape in self.shapes(biases=False))

    def weight_elements(self) -> int:
        """Elements of the flat buffer: cuDNN keeps two biases even for a layer without."""
        biases = 2 * self.gates * self.hidden * self.layers * self.directions
        return self.matrix_elements() + biases

    def offsets(self, *, biases: bool) -> list[int]:
        """Where each parameter lies in the flat buffer, in elements: matrices, then biases."""
        matrix, bias = 0, self.matrix_elements()
        found: list[int] = []
        for shape in self.shapes(biases=biases):
            found.append(matrix if len(shape) == 2 else bias)
            if len(shape) == 2:
                matrix += prod(shape)
            else:
                bias += prod(shape)
        return found

    def reserve_bytes(self, itemsize: int, *, dropout: bool) -> Span:
        """Low, likely and high bytes of what a forward pass in training keeps for backward.

        At least the gates and cells; the inner layers' outputs too by the figures above; at
        most also a second copy of those behind a dropout, and cells in float32.
        """
        unit = self.steps * self.batch * self.directions * self.hidden
        inner = self.steps * self.batch * self.directions * self.width * (self.layers - 1)
        kept = unit * _KEPT[self.mode] * self.layers
        low = kept * itemsize
        likely = low + inner * itemsize
        high = (
            likely
            + (inner * itemsize if dropout else 0)
            + unit * self.layers * (4 - min(itemsize, 4))
        )
        return low, likely, high

    def workspace_bytes(self, itemsize: int) -> Span:
        """Low, likely and high bytes of what lives during a call.

        At least the values of a step; at most also the gates of a layer for all steps.
        """
        cells = self.batch * self.layers * self.directions * self.hidden
        low = cells * (3 * self.gates - 1) * itemsize
        likely = low + self.matrix_elements() * itemsize
        gates = self.steps * self.batch * self.directions * self.gates * self.hidden
        return low, likely, likely + gates * itemsize
