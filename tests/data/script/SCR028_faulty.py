import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size):
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=size)
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(2, 2).cuda()
    model(torch.zeros(1, 2).cuda()).sum().backward()
    dist.destroy_process_group()


def main():
    size = torch.cuda.device_count()
    warm = torch.zeros(1).cuda()
    processes = []
    for rank in range(size):
        process = mp.Process(target=work, args=(rank, size))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    print(warm)


if __name__ == "__main__":
    main()
