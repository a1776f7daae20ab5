"""`paceline serve` as a worker of NVIDIA Dynamo."""
