"""Pictures of dataframes: figures, and a page that tells how runs went.

It knows neither lake nor SQL nor torch; matplotlib (extra `plot`) is imported when it draws.
"""
