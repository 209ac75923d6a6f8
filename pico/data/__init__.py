"""Text to token sequences: sources, tokenizers, packing, and the order that training sees.

Stands above the lake (a data set's sequences are stored there) and below the recorder and trainer.
"""
