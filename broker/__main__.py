"""`python -m broker`: the same as the script `broker`, where scripts are not on the path."""

from broker.cli.main import main

main()
