from fulgur.ui.cli import main

raise SystemExit(main())
