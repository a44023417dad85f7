"""A PyTorch DDP program that knows nothing of Muster: it trains a small network on handwritten digits and runs under torchrun too."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 5


def main() -> None:
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2])
    sampler = DistributedSampler(train, num_replicas=world, rank=rank)
    loader = DataLoader(train, batch_size=64 // world, sampler=sampler)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    if rank == 0:
        x, y = test[:]
        accuracy = (model.module(x.to(device)).argmax(1).cpu() == y).float().mean().item()
        print(f"test accuracy {accuracy:.4f} with {world} processes", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
