"""Commands: ``python -m mmguard.tools.train CONFIG``, and test, predict, browse, doctor, curves, convert_data and
merge_shards likewise; ``--help`` says what each does."""
