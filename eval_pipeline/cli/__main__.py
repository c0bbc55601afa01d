from eval_pipeline.cli.main import main

main()
