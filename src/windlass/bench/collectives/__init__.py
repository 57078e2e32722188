"""Time and check collectives over all ranks; columns, formulas and average as nccl-tests has them."""
