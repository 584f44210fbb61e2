"""Networks of kinds that no library of models has: recommendation, a recurrent one, volumes, graphs."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


def perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Scores a click, as DLRM does: dense features and bags of categories, and the products of every two of them."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = perceptron(13, 512, 256, width)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.top = perceptron(width + tables * (tables + 1) // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        bags = [table(categories[:, number]) for number, table in enumerate(self.tables)]
        features = torch.stack((bottom, *bags), dim=1)
        products = features @ features.transpose(1, 2)
        products = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat((bottom, products), dim=1)))


def dlrm(
    batch: int = 2048, tables: int = 26, rows: int = 100_000, width: int = 64, bag: int = 4
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A recommendation model with tables of categories (DLRM)."""
    return Dlrm(tables, rows, width), (torch.randn(batch, 13), torch.randint(rows, (batch, tables, bag)))


class Lstm(nn.Module):
    """Predicts the next token with a recurrent network."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden)


def lstm(
    batch: int = 32, seq: int = 128, width: int = 1024, layers: int = 2, vocabulary: int = 10_000
) -> tuple[nn.Module, Tensor]:
    """A language model with a long short-term memory (LSTM)."""
    return Lstm(vocabulary, width, layers), torch.randint(vocabulary, (batch, seq))


def block(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions of volumes, each with a normalisation and ReLU."""
    layers: list[nn.Module] = []
    for before in (channels, width):
        layers += [nn.Conv3d(before, width, 3, padding=1, bias=False), nn.InstanceNorm3d(width, affine=True), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet3d(nn.Module):
    """Segments a volume: it is halved at each level, and every level also sees the one of its own size."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(block(before, after) for before, after in zip([1, *widths], widths, strict=False))
        upwards = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.widen = nn.ModuleList(nn.ConvTranspose3d(before, after, 2, stride=2) for before, after in upwards)
        self.up = nn.ModuleList(block(2 * after, after) for _, after in upwards)
        self.head = nn.Conv3d(width, 3, 1)

    def forward(self, volume: Tensor) -> Tensor:
        seen = []
        for number, down in enumerate(self.down):
            volume = down(functional.max_pool3d(volume, 2) if number else volume)
            seen.append(volume)
        for widen, up, level in zip(self.widen, self.up, seen[-2::-1], strict=True):
            volume = up(torch.cat((widen(volume), level), dim=1))
        return self.head(volume)


def unet3d(batch: int = 2, size: int = 96, width: int = 32, levels: int = 4) -> tuple[nn.Module, Tensor]:
    """A segmentation of volumes (3D U-Net)."""
    return UNet3d(width, levels), torch.randn(batch, 1, size, size, size)


class GraphLayer(nn.Module):
    """Adds to each node what it makes of the mean of its neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        sources, targets = edges[0], edges[1]
        ones = torch.ones_like(targets, dtype=nodes.dtype)
        degrees = torch.zeros_like(nodes[:, 0]).scatter_add(0, targets, ones).clamp(min=1)
        messages = nodes[sources]
        sums = torch.zeros_like(nodes).scatter_add(0, targets.unsqueeze(1).expand_as(messages), messages)
        return nodes + functional.relu(self.norm(self.own(nodes) + self.others(sums / degrees.unsqueeze(1))))


class Graph(nn.Module):
    """Classifies the nodes of a graph, as GraphSAGE does."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, 40)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return self.head(nodes)


def graph(
    nodes: int = 50_000, edges: int = 500_000, width: int = 256, layers: int = 3
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A graph network (GraphSAGE)."""
    return Graph(width, layers), (torch.randn(nodes, width), torch.randint(nodes, (2, edges)))
