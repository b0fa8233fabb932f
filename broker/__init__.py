"""The liftlog broker, its client and its command line. Importing it loads nothing heavy.

Where to start: docs/explain/architecture.md.
"""

__version__ = "0.1.0"
