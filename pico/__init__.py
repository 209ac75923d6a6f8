"""A learning-dynamics warehouse for language models: training history as Parquet, asked in SQL."""
