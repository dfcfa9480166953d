#include "brigade/jobs/batch_script.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/base/shell_word.h"

namespace brigade {
namespace {

// Seconds before the time limit: enough to end a step and save.
constexpr int kNoticeSeconds = 120;

constexpr const char* kScript = R"bash(#!/bin/bash
# Written by brigade submit. It may be edited and submitted again: sbatch FILE
{DIRECTIVES}
set -u
job={FOLDER}
task=${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}

# What brigade status reads: a word and the job's number.
status() {
  echo "$* $SLURM_JOB_ID" >"$job/status$task.new"
  mv "$job/status$task.new" "$job/status$task"
}

# Before the time limit Slurm sends USR1 to this script. The ranks save and stop
# at TERM, with exit code 143; those that need more time for that have stopped
# before, with exit code 160.
at_limit=0
trap 'at_limit=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

echo "== brigade job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}," \
  "on $SLURM_JOB_NODELIST, $(date)"
status running
# In a file, since wait loses the code of what ends while a trap runs.
rm -f "$job/code$task"
{
  {COMMAND}
  echo "$?" >"$job/code$task"
} &
step=$!
# A signal ends wait early.
while kill -0 "$step" 2>/dev/null; do
  wait "$step"
done
code=$(cat "$job/code$task" 2>/dev/null || echo 1)

if [ "$code" = 0 ]; then
  status completed
elif [ "$code" = 160 ] || { [ "$code" = 143 ] && [ "$at_limit" = 1 ]; }; then
  # Saved: the job goes on where it stopped.
  status pending
  scontrol requeue "$SLURM_JOB_ID" || status "failed $code"
else
  status "failed $code"
fi
exit "$code"
)bash";

void replace_all(
    std::string& text,
    const std::string& from,
    const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// A line of sbatch's cannot hold more.
void require_one_line(const std::string& name, const std::string& value) {
  if (value.find('\n') != std::string::npos)
    throw ConfigError(
        fmt::format("[submit] {} must not hold a line break", name));
}

// As sbatch reads its directives, which end at blanks and '#' but for quotes.
std::string directive_word(const std::string& text) {
  if (text.find_first_of(" \t#'\"\\") == std::string::npos)
    return text;
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      result += '\\';
    result += c;
  }
  return result + "\"";
}

std::string directives(const SlurmJob& job) {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& value) {
    // Not by sbatch's name, but by that of the option it comes from.
    require_one_line(name == "output" ? "--jobs" : "--" + name, value);
    if (!value.empty())
      text += fmt::format("#SBATCH --{}={}\n", name, directive_word(value));
  };
  const auto add_number = [&](const char* name, std::optional<int> value) {
    if (value)
      add(name, std::to_string(*value));
  };
  add("job-name", job.name);
  add_number("nodes", job.nodes);
  add_number("ntasks", job.nodes * job.ranks_per_node);
  add_number("ntasks-per-node", job.ranks_per_node);
  add_number("cpus-per-task", job.cpus_per_rank);
  add_number("gpus-per-node", job.gpus_per_node);
  add("time", job.time);
  add("partition", job.partition);
  add("account", job.account);
  add("qos", job.qos);
  add("array", job.array);
  add("dependency", job.dependency);
  add("chdir", job.working_folder.string());
  // sbatch replaces %x in a path by what it stands for, %% by %.
  std::string folder = job.folder.string();
  replace_all(folder, "%", "%%");
  add("output", folder + (job.array.empty() ? "/output" : "/output.%a"));
  text += "#SBATCH --open-mode=append\n";
  text += "#SBATCH --requeue\n";
  text += fmt::format("#SBATCH --signal=B:USR1@{}\n", kNoticeSeconds);
  return text;
}

// One word in which the shell puts the task's number for %a, and % for %%.
std::string with_task_number(const std::string& text) {
  std::string result;
  std::string piece;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string two = text.substr(i, 2);
    if (two == "%a") {
      result += shell_quoted(piece) + "\"$SLURM_ARRAY_TASK_ID\"";
      piece.clear();
    } else {
      piece += text[i];
    }
    if (two == "%a" || two == "%%")
      ++i;
  }
  return result + shell_quoted(piece);
}

std::string command(const SlurmJob& job) {
  // srun does not take it over from sbatch.
  const std::string cpus =
      job.cpus_per_rank ? fmt::format(" --cpus-per-task={}", *job.cpus_per_rank)
                        : "";
  std::string text = fmt::format(
      "srun -n {} --distribution=block --kill-on-bad-exit=1{} \\\n  {} train "
      "--config \"$job/{}\" \\\n  logging.run_dir=\"$job/{}$task\"",
      job.nodes * job.ranks_per_node,
      cpus,
      shell_quoted(job.program.string()),
      kJobConfig,
      kJobRun);
  const std::string continues = "checkpoint.load_path=auto";
  std::string begin = continues;
  if (!job.load_path.empty() && job.load_path != "auto")
    begin = shell_quoted("checkpoint.load_path=" + job.load_path);
  for (const std::string& override_text : job.overrides) {
    const std::string word = job.array.empty()
                                 ? shell_quoted(override_text)
                                 : with_task_number(override_text);
    if (override_text.starts_with("checkpoint.load_path="))
      begin = override_text == continues ? continues : word;
    else
      text += " \\\n  " + word;
  }
  // Another run's checkpoint is continued until the job has one of its own.
  if (begin != continues)
    begin = fmt::format(
        "\"$(if [ -e \"$job/{}$task/checkpoints/latest\" ]\n"
        "    then echo {}\n"
        "    else printf %s {}; fi)\"",
        kJobRun,
        continues,
        begin);
  return text + " \\\n  " + begin;
}

}  // namespace

std::string slurm_batch_script(const SlurmJob& job) {
  return slurm_batch_script(job, kScript);
}

std::string slurm_batch_script(const SlurmJob& job, std::string text) {
  for (const char* part : {"{DIRECTIVES}", "{COMMAND}"}) {
    if (text.find(part) == std::string::npos)
      throw ConfigError(fmt::format(
          "[submit] the template has no {}, which stands for {}",
          part,
          part == std::string("{COMMAND}") ? "the srun command"
                                           : "the #SBATCH lines"));
  }
  replace_all(text, "{DIRECTIVES}\n", directives(job));
  replace_all(text, "{DIRECTIVES}", directives(job));
  replace_all(text, "{COMMAND}", command(job));
  replace_all(text, "{FOLDER}", shell_quoted(job.folder.string()));
  return text;
}

}  // namespace brigade
