"""Helpers that tests share: real processes, fakes of the outside world, generators."""
