"""What stands around a model: FSDP, ZeRO-3, DataParallel, Lightning."""
