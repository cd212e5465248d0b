"""``python -m mixprec`` prints what this machine offers."""

from mixprec.environment import main

if __name__ == "__main__":
    main()
