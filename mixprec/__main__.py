"""``python -m mixprec`` prints what this machine offers, and all that mixprec replaces in Chainer."""

from mixprec import environment

if __name__ == "__main__":
    print(environment.report())
    try:
        from mixprec import patches
    except Exception as error:  # of Chainer, which the report above has named
        print(f"\nThe list of all that mixprec replaces needs Chainer: {error}")
    else:
        print(f"\n{patches.report()}")
