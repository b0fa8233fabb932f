"""Who reads how far: consumer offsets as records of the offset stream."""
