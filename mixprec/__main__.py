"""``python -m mixprec`` prints the report of the machine."""

from mixprec.environment import main

if __name__ == "__main__":
    main()
