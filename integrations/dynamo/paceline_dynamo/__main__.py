"""Starts a worker: `python -m paceline_dynamo --help`."""

from dynamo.common.backend.run import run

from .worker import PacelineWorker


def main():
    run(PacelineWorker)


if __name__ == "__main__":
    main()
