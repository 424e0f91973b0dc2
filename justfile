# The chores; `just` lists them.
default:
    @just --list

# everything that the gate runs, in the environment at hand
check: lint types test-all

test *ARGS:
    python -m pytest -q -n 4 --dist loadfile {{ARGS}}

# with the slow ones, as the gate runs them
test-all:
    python -m pytest -q -n 4 --dist loadfile -m "not nightly"

lint:
    ruff check .
    ruff format --check .

types:
    mypy

# docs/checks and the JSON Schema, from the rules and the types
docs:
    python docs/generate.py

# the site, in build/site
site:
    sphinx-build -W --keep-going -q -E docs build/site

format:
    ruff format .
    ruff check --fix .

# what our measuring costs, against a bare torch loop
overhead:
    python benchmarks/overhead.py
    python benchmarks/walltime.py

# what is said of sound hosts while their machine is busy (root)
sound:
    python benchmarks/sound.py

# how long our own work takes: env on 8 GPUs and 9 HCAs, judging 2,000 nodes
speed:
    python benchmarks/probing.py
    python benchmarks/judging.py

# torch 2.1 to the newest on Python 3.10 to 3.13; the first time it installs 30 GB into build/torches
torches:
    python -m pytest -q -m nightly tests/house/test_torch_versions.py

# torch's CUDA build and NCCL under the real commands, without a GPU; the first time it installs 7 GB
torch-cuda:
    NCCLCHECK_TORCH_CUDA=make python -m pytest -q -m nightly tests/nccl/test_torch_cuda.py

# record this machine or cluster for tests/snapshots
record FILE *ARGS:
    ncclcheck env --save {{FILE}} {{ARGS}}
