// The sub-commands, one file each: parse, call, print. add_NAME() declares its
// options and its work as the sub-command's callback. An error is thrown
// (brigade::Error and its kinds); main() prints it and turns it into the exit
// code.
#pragma once

#include <CLI/CLI.hpp>

namespace brigade::cli {

// Thrown to leave with a code when all has been said already.
struct Exit {
  int code = 0;
};

void add_analyze(CLI::App& app);
void add_chat(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_completion(CLI::App& app);
void add_create_config(CLI::App& app);
void add_doctor(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_export(CLI::App& app);
void add_generate(CLI::App& app);
void add_import(CLI::App& app);
void add_inspect(CLI::App& app);
void add_man(CLI::App& app);
void add_metrics(CLI::App& app);
void add_plan(CLI::App& app);
void add_prepare(CLI::App& app);
void add_report(CLI::App& app);
void add_run(CLI::App& app);
void add_status(CLI::App& app);
void add_submit(CLI::App& app);
void add_tail(CLI::App& app);
void add_train(CLI::App& app);
void add_tune_buckets(CLI::App& app);
void add_tune_rate(CLI::App& app);

}  // namespace brigade::cli
