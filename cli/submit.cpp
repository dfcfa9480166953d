// brigade submit --config FILE|DIR --launcher slurm [--nodes N ...]
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/shell_word.h"
#include "brigade/files/file.h"
#include "brigade/jobs/batch_script.h"
#include "brigade/jobs/job_status.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/standard_streams.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

struct SubmitArguments {
  std::string config;
  std::string launcher;
  std::string jobs = "jobs";
  std::string template_file;
  std::vector<std::string> only;
  std::optional<int> ranks_per_node;
  bool is_dry_run = false;
  SlurmJob job;  // what the options say of every job
};

// One config to be trained.
struct Submission {
  std::string name;
  fs::path config;
};

// FILE, or of a folder each NAME.json and NAME/config.json.
std::vector<Submission> find_configs(const fs::path& path) {
  if (fs::is_regular_file(path))
    return {{path.stem().string(), path}};
  std::vector<Submission> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    // A link that leads nowhere is neither.
    std::error_code unknown;
    if (entry.is_regular_file(unknown) && entry.path().extension() == ".json")
      found.push_back({entry.path().stem().string(), entry.path()});
    else if (fs::is_regular_file(entry.path() / "config.json", unknown))
      found.push_back(
          {entry.path().filename().string(), entry.path() / "config.json"});
  }
  if (found.empty())
    throw ConfigError(fmt::format(
        "[submit] '{}' is no config file and no folder with NAME.json or "
        "NAME/config.json in it",
        path.string()));
  std::ranges::sort(found, {}, &Submission::name);
  return found;
}

// Throws ConfigError where Slurm's commands are not on this machine.
void require_slurm() {
  std::istringstream folders(process_environment()("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / "sbatch").c_str(), X_OK) == 0)
      return;
  }
  throw ConfigError(
      "[submit] there is no sbatch in PATH; submit on a machine of the "
      "cluster, or see the batch script with --dry-run");
}

// What a shell command printed. Throws StorageError when it fails.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen(command.c_str(), "r"), [](FILE*) { return 0; });
  std::string text;
  std::array<char, 256> part{};
  while (pipe && std::fgets(part.data(), part.size(), pipe.get()) != nullptr)
    text += part.data();
  const int status = pipe ? ::pclose(pipe.get()) : -1;
  if (status != 0)
    throw StorageError(fmt::format(
        "[submit] '{}' failed; what it printed is above, and --dry-run shows "
        "the batch script",
        command));
  return text;
}

// What --only, or without it a folder that is still free, asks for: the job, or
// of an array that was submitted before some of its tasks. Empty: nothing.
std::vector<JobStatus> find_wanted(
    const SubmitArguments& arguments,
    const fs::path& folder) {
  const bool is_new = !fs::exists(folder / kBatchScript);
  std::vector<JobStatus> tasks =
      is_new ? std::vector<JobStatus>{JobStatus{}} : read_job(folder);
  if (arguments.only.empty()) {
    if (!is_new)
      note(
          "note: {} was submitted before and is {}; --only {} submits it "
          "again\n",
          folder.string(),
          to_string(tasks.front().state),
          to_string(tasks.front().state));
    return is_new ? tasks : std::vector<JobStatus>{};
  }
  std::erase_if(tasks, [&](const JobStatus& task) {
    return std::ranges::count(arguments.only, to_string(task.state)) == 0;
  });
  return tasks;
}

std::string script_of(const SubmitArguments& arguments, const SlurmJob& job) {
  if (arguments.template_file.empty())
    return slurm_batch_script(job);
  return slurm_batch_script(job, read_text_file(arguments.template_file));
}

void submit_one(
    const SlurmJob& job,
    const std::vector<JobStatus>& wanted,
    const fs::path& config,
    const std::string& script) {
  const std::string text = read_text_file(config);
  std::error_code error;
  fs::create_directories(job.folder, error);
  if (error)
    throw StorageError(fmt::format(
        "[submit] cannot make '{}': {}", job.folder.string(), error.message()));
  // One that still waits would train into the same folder.
  for (const JobStatus& task : wanted) {
    if (task.state == JobState::kPending && !task.job_id.empty())
      output_of("scancel --quiet " + shell_quoted(task.job_id) + " || true");
  }
  set_pending(job.folder, wanted);
  write_text_file(job.folder / kJobConfig, text);
  write_text_file(job.folder / kBatchScript, script);
  std::string id = output_of(
      "sbatch --parsable " +
      shell_quoted((job.folder / kBatchScript).string()));
  id.erase(std::min(id.find_first_of(";\n"), id.size()));
  write_text_file(job.folder / kSubmittedId, id + "\n");
  fmt::print("{}: job {}\n", job.name, id);
}

// Where the job begins. Throws ConfigError where the script could not see that
// it has checkpoints of its own by then.
void take_start(const LoadedConfig& loaded, SlurmJob& job) {
  job.load_path = loaded.config.checkpoint.load_path;
  std::string start = "checkpoint.load_path=" + job.load_path;
  std::string elsewhere;
  for (const ResolvedValue& value : loaded.values) {
    if (value.key == "checkpoint.save_dir" &&
        value.origin != ValueOrigin::kDefault)
      elsewhere = value.key + "=" + loaded.config.checkpoint.save_dir;
  }
  // Those that hold a task's number are not in `loaded`.
  for (const std::string& text : job.overrides) {
    if (text.starts_with("checkpoint.load_path="))
      start = text;
    if (text.starts_with("checkpoint.save_dir=") ||
        text.starts_with("logging.run_dir="))
      elsewhere = text;
  }
  if (!elsewhere.empty() && start != "checkpoint.load_path=" &&
      start != "checkpoint.load_path=auto")
    throw ConfigError(fmt::format(
        "[submit] {} and {} are both given; leave the latter out: a job's "
        "checkpoints are in its own folder, where each start looks for the "
        "newest one",
        start,
        elsewhere));
}

void submit(const SubmitArguments& arguments) {
  for (const std::string& state : arguments.only)
    parse_job_state(state);
  SlurmJob job = arguments.job;
  job.ranks_per_node =
      arguments.ranks_per_node.value_or(job.gpus_per_node.value_or(1));
  job.program = fs::read_symlink("/proc/self/exe");
  job.working_folder = fs::current_path();
  const fs::path jobs = fs::absolute(arguments.jobs).lexically_normal();
  if (!arguments.is_dry_run)
    require_slurm();
  for (const Submission& each : find_configs(arguments.config)) {
    job.name = each.name;
    job.folder = jobs / each.name;
    const std::vector<JobStatus> wanted = find_wanted(arguments, job.folder);
    if (wanted.empty())
      continue;
    // Tasks that are not asked for may be running, or have been completed.
    job.array = arguments.job.array;
    if (!wanted.front().task.empty()) {
      std::vector<std::string> numbers;
      for (const JobStatus& task : wanted)
        numbers.push_back(task.task);
      job.array = fmt::format("{}", fmt::join(numbers, ","));
    }
    // Its problems are better found now than in the queue.
    std::vector<std::string> overrides = job.overrides;
    std::erase_if(overrides, [&](const std::string& text) {
      return !job.array.empty() && text.find("%a") != std::string::npos;
    });
    const LoadedConfig loaded = load_config(
        {.path = each.config.string(), .nproc = {}, .overrides = overrides},
        job.nodes * job.ranks_per_node,
        gpus_elsewhere());
    take_start(loaded, job);
    const std::string script = script_of(arguments, job);
    if (arguments.is_dry_run)
      fmt::print("{}", script);
    else
      submit_one(job, wanted, each.config, script);
  }
}

// What sbatch takes as --time: minutes, MM:SS, HH:MM:SS, and each behind D-.
bool is_time(const std::string& text) {
  static const std::regex form(
      "UNLIMITED|([0-9]+-)?[0-9]+|[0-9]+:[0-5]?[0-9]|"
      "([0-9]+-)?[0-9]+:[0-5]?[0-9](:[0-5]?[0-9])?");
  return std::regex_match(text, form);
}

// Numbers and ranges with commas: 0-9, 1,3,5-7, 0-15:4, 0-9%2.
bool is_array(const std::string& text) {
  static const std::regex form(
      "[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(%[0-9]+)?");
  static const std::regex range("([0-9]+)-([0-9]+)");
  if (!std::regex_match(text, form))
    return false;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), range);
       at != std::sregex_iterator();
       ++at) {
    constexpr size_t kMostDigits = 9;
    const std::string first = (*at)[1];
    const std::string last = (*at)[2];
    if (first.size() > kMostDigits || last.size() > kMostDigits ||
        std::stol(first) > std::stol(last))
      return false;
  }
  return true;
}

CLI::Validator of_form(bool (*is_good)(const std::string&), const char* form) {
  return {
      [=](const std::string& text) {
        return is_good(text) ? std::string()
                             : fmt::format("expected {}, not '{}'", form, text);
      },
      ""};
}

void add_slurm_options(CLI::App& command, SubmitArguments& arguments) {
  SlurmJob& job = arguments.job;
  command.add_option("--nodes", job.nodes, "Nodes of each job")
      ->type_name("N")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command
      .add_option(
          "--ranks-per-node",
          arguments.ranks_per_node,
          "Ranks on each node (default: its GPUs, else 1)")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  command.add_option("--gpus-per-node", job.gpus_per_node, "GPUs of each node")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  command.add_option("--cpus-per-task", job.cpus_per_rank, "CPUs of each rank")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  command.add_option("--time", job.time, "Time limit of each start")
      ->type_name("HH:MM:SS")
      ->check(of_form(is_time, "a time such as 04:00:00, 90 or 1-12:00"));
  command.add_option("--partition", job.partition, "Partition of the cluster");
  command.add_option("--account", job.account, "Account that pays");
  command.add_option("--qos", job.qos, "Quality of service");
  command
      .add_option(
          "--array",
          job.array,
          "Tasks of a job array; %a in an override is the task's number, %% is "
          "%")
      ->type_name("0-N")
      ->check(of_form(is_array, "task numbers such as 0-9, 1,3 or 0-9%2"));
  command.add_option("--dependency", job.dependency, "As sbatch takes it");
}

}  // namespace

void add_submit(CLI::App& app) {
  auto arguments = std::make_shared<SubmitArguments>();
  CLI::App* command =
      app.add_subcommand("submit", "Submit training jobs to a cluster's queue");
  command
      ->add_option(
          "--config",
          arguments->config,
          "A config, or a folder of configs: one job each")
      ->type_name("FILE|DIR")
      ->required();
  command->add_option("--launcher", arguments->launcher, "The cluster's queue")
      ->required()
      ->check(one_of({"slurm"}));
  command
      ->add_option(
          "--jobs",
          arguments->jobs,
          "Where each job gets a folder: script, config, output, run")
      ->type_name("DIR")
      ->capture_default_str();
  add_slurm_options(*command, *arguments);
  command
      ->add_option(
          "--template",
          arguments->template_file,
          "A batch script with {DIRECTIVES}, {COMMAND} and {FOLDER} (default: "
          "built in)")
      ->type_name("FILE");
  command
      ->add_option(
          "--only",
          arguments->only,
          "Submit again the jobs in these states (default: those never "
          "submitted)")
      ->type_name("fail,oom,timeout,pending")
      ->delimiter(',');
  command->add_flag(
      "--dry-run",
      arguments->is_dry_run,
      "Print the batch scripts and submit nothing (default: off)");
  command
      ->add_option(
          "overrides",
          arguments->job.overrides,
          "Values in place of the config's")
      ->type_name("group.key=value");
  command->footer(
      "Example: brigade submit --config my.json --launcher slurm --nodes 2 "
      "--ranks-per-node 4\n  --time 04:00:00\n\nA job continues from its "
      "newest "
      "checkpoint, saves before its time limit and goes back into\nthe queue. "
      "brigade status shows how jobs are doing.");
  command->callback([arguments] { submit(*arguments); });
}

}  // namespace brigade::cli
