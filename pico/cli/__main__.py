"""Run the command line as `python -m pico.cli`."""

from pico.cli.entry import main

if __name__ == "__main__":
    main()
