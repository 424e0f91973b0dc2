"""Image loaders as popular repositories write them, re-written small. Examined by test_popular_libraries.py."""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler
from torch.utils.data.dataloader import default_collate

N = 96
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def by_rank(data: Any, **options: Any) -> DistributedSampler[Any]:
    return DistributedSampler(data, num_replicas=WORLD, rank=RANK, **options)


class Folder(Dataset[Any]):
    """Files and classes by name, a transform. pytorch/vision, torchvision/datasets/folder.py."""

    def __init__(self, transform: Any) -> None:
        self.samples = [(f"{number:04d}.jpg", number % 10) for number in range(N)]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        name, target = self.samples[index]
        image = torch.full((3, 24, 30), int(name[:4]), dtype=torch.uint8)
        return self.transform(image), target


class RandomResizedCrop:
    """torchvision.transforms: numbers are drawn from torch's global generator."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        top, left = (int(torch.randint(0, size - 15, (1,))) for size in image.shape[1:])
        image = image[:, top : top + 16, left : left + 16]
        return (image.flip(-1) if torch.rand(1) < 0.5 else image).float() + torch.rand(1)


def references_classification() -> DataLoader[Any]:
    """Sound: pytorch/vision, references/classification/train.py, with MixUp in the collate function."""

    def collate(batch: list[Any]) -> Any:
        images, targets = default_collate(batch)
        share = float(torch._sample_dirichlet(torch.tensor([0.2, 0.2]))[0])
        return images.roll(1, 0).mul_(1.0 - share).add_(images.mul(share)), targets

    data = Folder(RandomResizedCrop())
    return DataLoader(data, batch_size=8, sampler=by_rank(data), num_workers=2, collate_fn=collate)


class RepeatedAugmentation(Sampler[int]):
    """Each sample three times an epoch, on several ranks; not all samples in each. timm, RepeatAugSampler."""

    def __init__(self, data: Any, repeats: int = 3) -> None:
        self.data, self.repeats, self.epoch = data, repeats, 0
        self.num_samples = math.ceil(len(data) * repeats / WORLD)
        self.num_selected = math.floor(len(data) // 16 * 16 / WORLD)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(self.epoch))
        indices = order.repeat_interleave(self.repeats).tolist()
        indices += indices[: self.num_samples * WORLD - len(indices)]
        return iter(indices[RANK::WORLD][: self.num_selected])

    def __len__(self) -> int:
        return self.num_selected

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def timm_repeated() -> DataLoader[Any]:
    """Sound: huggingface/pytorch-image-models, timm/data/loader.py, fast_collate and RepeatAugSampler."""

    def fast_collate(batch: list[Any]) -> Any:
        images = torch.zeros((len(batch), 3, 16, 16), dtype=torch.uint8)
        for place, (image, _) in enumerate(batch):
            images[place] += image.to(torch.uint8)
        return images, torch.tensor([target for _, target in batch])

    data = Folder(RandomResizedCrop())
    sampler = RepeatedAugmentation(data)
    return DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, collate_fn=fast_collate, drop_last=True)


class Serialized:
    """Pickles in one array. facebookresearch/detectron2, data/common.py, NumpySerializedList."""

    def __init__(self, records: list[Any]) -> None:
        data = [np.frombuffer(pickle.dumps(record, protocol=-1), dtype=np.uint8) for record in records]
        self.addresses = np.cumsum([len(record) for record in data])
        self.data = np.concatenate(data)

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, index: int) -> Any:
        start = 0 if index == 0 else self.addresses[index - 1].item()
        return pickle.loads(self.data[start : self.addresses[index].item()].tobytes())


class Mapped(Dataset[Any]):
    """detectron2, data/common.py, MapDataset, and a mapper that copies the record first."""

    def __init__(self) -> None:
        self.records = Serialized([
            {"file_name": f"{n}.jpg", "width": 20 + n % 3, "height": 21,
             "boxes": np.full((1 + n % 4, 4), n, "float32")}
            for n in range(N)
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        record = copy.deepcopy(self.records[index])
        record["image"] = torch.full((3, record["height"], record["width"]), float(index))
        if np.random.rand() < 0.5:
            record["image"] = record["image"].flip(-1)
        record["instances"] = torch.as_tensor(record.pop("boxes"))
        return record


class Training(Sampler[int]):
    """Without an end; ranks share a seed and take turns. detectron2, data/samplers, TrainingSampler."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(7)
        place = 0
        while True:
            for index in torch.randperm(self.size, generator=generator).tolist():
                if place % WORLD == RANK:
                    yield index
                place += 1


class ByAspect(IterableDataset[Any]):
    """Around a DataLoader with workers of its own. detectron2, data/common.py, AspectRatioGroupedDataset."""

    def __init__(self, dataset: DataLoader[Any], batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self._buckets: list[list[Any]] = [[], []]

    def __iter__(self) -> Iterator[Any]:
        for record in self.dataset:
            bucket = self._buckets[record["width"] > record["height"]]
            bucket.append(record)
            if len(bucket) == self.batch_size:
                yield bucket[:]
                del bucket[:]


def detectron() -> ByAspect:
    """Sound: detectron2, data/build.py, build_batch_data_loader with aspect_ratio_grouping."""

    def first(batch: list[Any]) -> Any:
        return batch[0]

    return ByAspect(DataLoader(Mapped(), sampler=Training(N), num_workers=2, collate_fn=first), 4)


def detection_references() -> DataLoader[Any]:
    """Sound: pytorch/vision, references/detection, GroupedBatchSampler and a collate function that zips."""

    class Grouped(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            waiting: dict[int, list[int]] = defaultdict(list)
            for index in self.sampler:
                waiting[index % 2].append(index)
                if len(waiting[index % 2]) == self.batch_size:
                    yield waiting.pop(index % 2)

        def __len__(self) -> int:
            return len(self.sampler) // self.batch_size  # type: ignore[arg-type]

    class Boxes(Mapped):
        def __getitem__(self, index: int) -> Any:
            record = super().__getitem__(index)
            return record["image"], {"boxes": record["instances"], "image_id": index}

    data = Boxes()
    batches = Grouped(by_rank(data), 4, drop_last=True)
    return DataLoader(
        data, batch_sampler=batches, num_workers=2, collate_fn=lambda batch: tuple(zip(*batch, strict=True))
    )


class Mosaicked(Dataset[Any]):
    """Its indices are pairs: (mosaic or not, index). Megvii-BaseDetection/YOLOX, MosaicDetection."""

    def __init__(self) -> None:
        self.images = np.random.RandomState(0).randint(0, 255, (N, 3, 8, 8)).astype("uint8")

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        mosaic, index = index if isinstance(index, tuple) else (False, index)
        others = [index, *(random.randint(0, N - 1) for _ in range(3))] if mosaic else [index] * 4
        return torch.from_numpy(np.concatenate([self.images[other] for other in others], 1)), torch.tensor([index])


class MosaicBatches(BatchSampler):
    """YOLOX, data/samplers.py, YoloBatchSampler."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield [(True, index) for index in batch]


def yolox() -> DataLoader[Any]:
    """Sound."""
    data = Mosaicked()
    return DataLoader(data, batch_sampler=MosaicBatches(by_rank(data), 8, False), num_workers=2)


def mmdet() -> DataLoader[Any]:
    """Sound: open-mmlab/mmengine, DefaultSampler and pseudo_collate, and worker seeds by rank."""

    class Default(Sampler[int]):
        def __init__(self) -> None:
            self.epoch, self.size = 0, N

        def __iter__(self) -> Iterator[int]:
            order = torch.randperm(N, generator=torch.Generator().manual_seed(5 + self.epoch)).tolist()
            return iter(order[RANK::WORLD])

        def __len__(self) -> int:
            return math.ceil((N - RANK) / WORLD)

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    def init(worker: int) -> None:
        seed = 2 * RANK + worker + 5 + int(torch.initial_seed() % 1000)
        np.random.seed(seed)
        random.seed(seed)
        torch.manual_seed(seed)

    def pseudo_collate(batch: list[Any]) -> Any:
        return {
            "inputs": [sample["image"] for sample in batch],
            "data_samples": [sample["instances"] for sample in batch],
        }

    return DataLoader(
        Mapped(), batch_size=4, sampler=Default(), num_workers=2, collate_fn=pseudo_collate, worker_init_fn=init,
        persistent_workers=True,
    )  # fmt: skip


def segmentation() -> DataLoader[Any]:
    """Sound: the image and its mask are cut alike. pytorch/vision, references/segmentation, presets."""

    class Pairs(Dataset[Any]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> Any:
            image, mask = torch.full((3, 20, 20), range(N)[index] / N), torch.eye(20, dtype=torch.int64)
            top, left = random.randint(0, 4), random.randint(0, 4)
            crop = (slice(top, top + 16), slice(left, left + 16))
            return image[(slice(None), *crop)].clone() + random.random(), mask[crop].clone()

    data = Pairs()
    return DataLoader(data, batch_size=4, sampler=by_rank(data), num_workers=2, drop_last=True)


def two_streams() -> DataLoader[Any]:
    """Sound: labelled and unlabelled in each batch. CuriousAI/mean-teacher, TwoStreamBatchSampler."""

    class TwoStreams(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            labelled = np.random.permutation(16).tolist()
            rest = np.random.permutation(range(16, N)).tolist()
            for place in range(0, len(rest), 6):
                yield [*rest[place : place + 6], *(labelled[(place + step) % 16] for step in range(2))]

        def __len__(self) -> int:
            return math.ceil((N - 16) / 6)

    return DataLoader(Folder(RandomResizedCrop()), batch_sampler=TwoStreams(), num_workers=2)


def identities() -> DataLoader[Any]:
    """Sound: some images of some persons, each batch. KaiyangZhou/deep-person-reid, RandomIdentitySampler."""

    class Identities(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            people = list(range(10))
            random.shuffle(people)
            for person in people:
                yield from random.sample(range(person, 90, 10), 4)

        def __len__(self) -> int:
            return 40

    return DataLoader(
        Folder(RandomResizedCrop()), batch_size=8, sampler=Identities(), num_workers=2, drop_last=True
    )


def balanced() -> DataLoader[Any]:
    """Sound: drawn by weight. ufoym/imbalanced-dataset-sampler, ImbalancedDatasetSampler."""

    class Imbalanced(Sampler[int]):
        def __init__(self) -> None:
            self.weights = torch.linspace(1, 2, N)

        def __iter__(self) -> Iterator[int]:
            return iter(torch.multinomial(self.weights, N, replacement=True).tolist())

        def __len__(self) -> int:
            return N

    return DataLoader(Folder(RandomResizedCrop()), batch_size=8, sampler=Imbalanced(), num_workers=2)


class Persistent(Dataset[Any]):
    """Sound: made once, kept in a file, moved into place. Project-MONAI/MONAI, PersistentDataset."""

    in_place = False

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        path = os.path.join(self.folder, f"{range(24)[index]}.pt")
        if not os.path.exists(path):
            target = path if self.in_place else f"{path}.{os.getpid()}"
            torch.save(torch.full((64, 512), float(index)), target)
            os.replace(target, path)
        tensor: torch.Tensor = torch.load(path, weights_only=True)
        return tensor


def persistent(folder: str) -> DataLoader[Any]:
    """Sound."""
    data = Persistent(folder)
    return DataLoader(data, batch_size=4, num_workers=2, sampler=by_rank(data, shuffle=False))


class PersistentInPlace(Persistent):
    """Defect: written where others read. The same without its temporary name."""

    in_place = True


def persistent_in_place(folder: str) -> DataLoader[Any]:
    """Defect."""
    data = PersistentInPlace(folder)
    return DataLoader(data, batch_size=4, num_workers=2, sampler=by_rank(data, shuffle=False))


def none_for_missing() -> DataLoader[Any]:
    """Defect: None for a picture that is gone, and torch's own collate function."""

    class Missing(Folder):
        def __getitem__(self, index: int) -> Any:
            return None if index % 10 == 7 else super().__getitem__(index)

    data = Missing(RandomResizedCrop())
    return DataLoader(data, batch_size=8, sampler=by_rank(data), num_workers=2)


def constant_seed() -> DataLoader[Any]:
    """Defect: every worker in every epoch has numpy's numbers of seed 0, as "reproducible" loaders are written."""

    class Noisy(Folder):
        def __getitem__(self, index: int) -> Any:
            image, target = super().__getitem__(index)
            return image[:, :8, :8] * 0 + np.random.rand(), target

    data = Noisy(RandomResizedCrop())

    def init(_: int) -> None:
        np.random.seed(0)

    return DataLoader(data, batch_size=8, sampler=by_rank(data), num_workers=2, worker_init_fn=init)


class Transform:
    """A transform with generators of its own. albumentations 2.0.8, core/transforms_interface.py."""

    def __init__(self, p: float) -> None:
        self.p, self.py_random, self.random_generator = p, random.Random(), np.random.default_rng()

    def __call__(self, image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.py_random.random() < self.p:
            image = image + self.random_generator.normal()
        return image


class Composed(Dataset[Any]):
    """Defect: ten transforms with generators that are copied to all workers."""

    def __init__(self) -> None:
        self.transforms = [Transform(0.0) for _ in range(9)] + [Transform(0.3)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        image = np.full((8, 8, 3), float(range(N)[index]))
        for transform in self.transforms:
            image = transform(image)
        return torch.from_numpy(image)


def composed() -> DataLoader[Any]:
    """Defect."""
    data = Composed()
    return DataLoader(data, batch_size=8, sampler=by_rank(data), num_workers=2)


def constant_rank() -> DataLoader[Any]:
    """Defect: world size and rank as they were on the author's machine."""
    data = Folder(RandomResizedCrop())
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=4, rank=0), num_workers=2)


class Named(Folder):
    """Defect: a class has the number of its place in a set, which is another one in each process."""

    def __init__(self) -> None:
        super().__init__(lambda image: image)
        self.classes = list({f"class{target}" for _, target in self.samples})

    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, self.classes.index(f"class{target}")


def named() -> DataLoader[Any]:
    """Defect."""
    data = Named()
    return DataLoader(data, batch_size=8, sampler=by_rank(data), num_workers=2)
