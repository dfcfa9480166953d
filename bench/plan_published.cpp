// How far are the planner's predictions from runs that others published?
//
//   plan_published published_runs.csv [--runs] [--constant NAME=VALUE ...]
//
// Prints for each source the median and the 90th percentile of
// |predicted / published - 1| of step time, and for each sweep (runs of one
// source on one kind of machine) how well it puts them in order.
#include <fmt/format.h>

#include <cstdio>

#include "bench/published/setup.h"
#include "brigade/planner/search.h"

namespace brigade::bench {
namespace {

struct Compared {
  const PublishedRun* run = nullptr;
  planner::StepEstimate estimate;
  double published = 0;  // seconds
  double memory_gb = 0;  // predicted peak
  // Step time for each FLOP of the model: what a sweep over models and
  // batches compares.
  double published_per_flop = 0;
  double predicted_per_flop = 0;
  double error() const { return std::abs(estimate.seconds / published - 1); }
};

struct Options {
  std::string path;
  bool lists_runs = false;
  machine::Constants constants;
  ProgramConstants programs;
  std::map<std::string, double> devices;  // "a100.sustained"
};

double quantile(std::vector<double> values, double part) {
  if (values.empty())
    return NAN;
  std::sort(values.begin(), values.end());
  const double at = part * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] +
         (at - static_cast<double>(low)) * (values[high] - values[low]);
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    double below = 0;
    double equal = 0;
    for (double value : values) {
      below += value < values[i] ? 1 : 0;
      equal += value == values[i] ? 1 : 0;
    }
    ranks[i] = below + (equal - 1) / 2;
  }
  return ranks;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks_of(a);
  const std::vector<double> y = ranks_of(b);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xy = 0;
  double xx = 0;
  double yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : NAN;
}

std::string first_note(const PublishedRun& run) {
  const std::string& notes = run.text("notes");
  return notes.substr(0, notes.find(';'));
}

// BigScience's notes name the section of the log; elsewhere a source's runs on
// one kind of device belong together.
std::string sweep_of(const PublishedRun& run) {
  std::string name = run.text("source").substr(0, 40) + " / " +
                     run.text("gpu_type").substr(0, 12);
  if (run.source_has("BigScience"))
    name = "BigScience / " + first_note(run);
  if (run.notes_have("FP8") && run.source_has("mosaicml"))
    name += " fp8";
  return name;
}

Compared compare(const PublishedRun& run, RunSetup setup) {
  Compared compared;
  compared.run = &run;
  planner::StepEstimator estimator(setup.training);
  for (const planner::Layout& layout : setup.layouts) {
    const planner::StepEstimate estimate = estimator.estimate(layout);
    // What was not published is chosen as the planner would choose it.
    const bool is_first = compared.estimate.seconds == 0;
    if (is_first ||
        (planner::fits(estimate.memory, setup.training.machine.device, 1) &&
         estimate.seconds < compared.estimate.seconds))
      compared.estimate = estimate;
  }
  compared.memory_gb = planner::largest(compared.estimate.memory).total() / 1e9;
  compared.published = published_seconds(run, setup.training).value_or(0);
  const double flops =
      planner::model_flops_per_token(
          setup.training.shape, setup.training.batch.sequence_tokens) *
      static_cast<double>(setup.training.batch.sequences) *
      static_cast<double>(setup.training.batch.sequence_tokens) /
      static_cast<double>(run.integer("gpus"));
  compared.published_per_flop = compared.published / flops;
  compared.predicted_per_flop = compared.estimate.seconds / flops;
  return compared;
}

void print_run(const Compared& compared) {
  const planner::StepParts& parts = compared.estimate.parts;
  const PublishedRun& run = *compared.run;
  const double percent = 100 / compared.estimate.seconds;
  const auto published_memory = run.figure("peak_mem_gb");
  fmt::print(
      "{:+6.1f} %  {:9.3f} s of {:9.3f}  mfu {:4.1f}  products {:4.1f} "
      "attention {:4.1f} elementwise {:4.1f} again {:4.1f} host {:4.1f} "
      "tp {:4.1f} cp {:4.1f} pp {:4.1f} "
      "zero {:4.1f} bubble {:4.1f} reduce {:4.1f} optimizer {:4.1f} slowest "
      "{:3.1f}  {:5.1f} of {:5.1f} GB  {} {} seq {} gpus {} {} | {} | {}\n",
      100 * (compared.estimate.seconds / compared.published - 1),
      compared.estimate.seconds,
      compared.published,
      100 * compared.estimate.mfu,
      percent * parts.computation.products,
      percent * parts.computation.attention,
      percent * parts.computation.elementwise,
      percent * parts.computation.recompute,
      percent * parts.computation.host,
      percent * parts.computation.tp,
      percent * parts.computation.cp,
      percent * parts.computation.pp,
      percent * parts.computation.dp,
      percent * parts.bubble,
      percent * parts.reduction,
      percent * parts.optimizer,
      percent * parts.slowest,
      compared.memory_gb,
      published_memory.value_or(
          run.figure("peak_mem_gib").value_or(0) * 1.073741824),
      run.text("model"),
      to_string(compared.estimate.layout),
      run.text("seq"),
      run.text("gpus"),
      run.text("gpu_type").substr(0, 16),
      run.text("source").substr(0, 30),
      first_note(run).substr(0, 60));
}

void print_sources(const std::vector<Compared>& all) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<double>> errors;
  std::map<std::string, std::vector<double>> bias;
  for (const Compared& compared : all) {
    const std::string& source = compared.run->text("source");
    if (errors.find(source) == errors.end())
      order.push_back(source);
    errors[source].push_back(compared.error());
    bias[source].push_back(compared.estimate.seconds / compared.published - 1);
    errors["all"].push_back(compared.error());
    bias["all"].push_back(compared.estimate.seconds / compared.published - 1);
  }
  order.emplace_back("all");
  fmt::print(
      "{:<62} {:>5} {:>8} {:>8} {:>12}\n",
      "|predicted / published - 1| of step time",
      "runs",
      "median",
      "90th",
      "signed median");
  for (const std::string& source : order)
    fmt::print(
        "{:<62} {:>5} {:>6.1f} % {:>6.1f} % {:>+10.1f} %\n",
        source.substr(0, 62),
        errors[source].size(),
        100 * quantile(errors[source], 0.5),
        100 * quantile(errors[source], 0.9),
        100 * quantile(bias[source], 0.5));
}

// Runs of one configuration, published more than once (with versions of a
// program, or on several days), are one point at their median.
std::vector<std::vector<const Compared*>> told_apart(
    const std::vector<const Compared*>& runs) {
  std::map<std::string, std::vector<const Compared*>> groups;
  for (const Compared* compared : runs) {
    std::string key = fmt::format("{}", compared->estimate.seconds);
    for (const auto& [name, text] : compared->run->fields) {
      if (name != "notes")
        key += '\x1f' + text;
    }
    groups[key].push_back(compared);
  }
  std::vector<std::vector<const Compared*>> result;
  for (const auto& [key, alike] : groups)
    result.push_back(alike);
  return result;
}

// How far apart a source's own repeats of one configuration are: the median of
// slowest / fastest - 1.
constexpr double kUnrepeated = 0.02;  // where nothing was published twice
double repeat_spread(
    const std::vector<Compared>& all,
    const std::string& source) {
  std::vector<const Compared*> runs;
  for (const Compared& compared : all) {
    if (compared.run->text("source") == source)
      runs.push_back(&compared);
  }
  std::vector<double> spreads;
  for (const std::vector<const Compared*>& alike : told_apart(runs)) {
    const auto [least, most] = std::minmax_element(
        alike.begin(), alike.end(), [](const Compared* a, const Compared* b) {
          return a->published < b->published;
        });
    if (alike.size() > 1)
      spreads.push_back((*most)->published / (*least)->published - 1);
  }
  return spreads.empty() ? kUnrepeated : quantile(spreads, 0.5);
}

// Pairs of runs whose published times are no further apart than repeats are say
// nothing about order; of the others, how many are in order.
struct Pairs {
  int all = 0;
  int within_noise = 0;
  int in_order = 0;
  Pairs& operator+=(const Pairs& other) {
    all += other.all;
    within_noise += other.within_noise;
    in_order += other.in_order;
    return *this;
  }
};

Pairs count_pairs(
    const std::vector<double>& published,
    const std::vector<double>& predicted,
    double spread) {
  Pairs pairs;
  for (size_t i = 0; i < published.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto [low, high] = std::minmax(published[i], published[j]);
      ++pairs.all;
      if (high <= low * (1 + spread))
        ++pairs.within_noise;
      else if ((published[i] < published[j]) == (predicted[i] < predicted[j]))
        ++pairs.in_order;
    }
  }
  return pairs;
}

void print_sweeps(const std::vector<Compared>& all) {
  constexpr size_t kFewest = 4;
  std::map<std::string, std::vector<const Compared*>> sweeps;
  for (const Compared& compared : all)
    sweeps[sweep_of(*compared.run)].push_back(&compared);
  fmt::print(
      "\n{:<58} {:>5} {:>9} {:>9} {:>12} {:>17} {:>16}\n",
      "rank correlation within sweeps",
      "runs",
      "time",
      "time/FLOP",
      "best is off",
      "pairs (in noise)",
      "others in order");
  int counted = 0;
  int within = 0;
  double sum_time = 0;
  double sum_flop = 0;
  Pairs sum_pairs;
  const auto print_pairs = [](const Pairs& pairs) {
    const int others = pairs.all - pairs.within_noise;
    fmt::print(
        " {:>9} ({:>5}) {:>7} of {:>5}\n",
        pairs.all,
        pairs.within_noise,
        pairs.in_order,
        others);
  };
  for (const auto& [name, runs] : sweeps) {
    std::vector<double> a;
    std::vector<double> b;
    std::vector<double> x;
    std::vector<double> y;
    for (const std::vector<const Compared*>& alike : told_apart(runs)) {
      std::vector<double> seconds;
      std::vector<double> per_flop;
      for (const Compared* run : alike) {
        seconds.push_back(run->published);
        per_flop.push_back(run->published_per_flop);
      }
      a.push_back(quantile(seconds, 0.5));
      b.push_back(alike.front()->estimate.seconds);
      x.push_back(quantile(per_flop, 0.5));
      y.push_back(alike.front()->predicted_per_flop);
    }
    if (a.size() < kFewest)
      continue;
    const auto chosen =
        static_cast<size_t>(std::min_element(y.begin(), y.end()) - y.begin());
    const double off = x[chosen] / *std::min_element(x.begin(), x.end()) - 1;
    ++counted;
    within += off <= 0.05 ? 1 : 0;
    const Pairs pairs = count_pairs(
        a, b, repeat_spread(all, runs.front()->run->text("source")));
    sum_pairs += pairs;
    sum_time += spearman(a, b);
    sum_flop += spearman(x, y);
    fmt::print(
        "{:<58} {:>5} {:>9.2f} {:>9.2f} {:>10.1f} %",
        name.substr(0, 58),
        a.size(),
        spearman(a, b),
        spearman(x, y),
        100 * off);
    print_pairs(pairs);
  }
  if (counted == 0)
    return;
  fmt::print(
      "{:<58} {:>5} {:>9.2f} {:>9.2f} {:>12}",
      "mean; best within 5 %; sum",
      "",
      sum_time / counted,
      sum_flop / counted,
      fmt::format("{} of {}", within, counted));
  print_pairs(sum_pairs);
}

void print_memory(const std::vector<Compared>& all) {
  std::vector<double> errors;
  for (const Compared& compared : all) {
    auto published = compared.run->figure("peak_mem_gb");
    if (const auto gib = compared.run->figure("peak_mem_gib"))
      published = *gib * 1.073741824;
    if (published)
      errors.push_back(std::abs(compared.memory_gb / *published - 1));
  }
  fmt::print(
      "\npeak memory: {} figures, median error {:.1f} %, 90th percentile "
      "{:.1f} "
      "%\n",
      errors.size(),
      100 * quantile(errors, 0.5),
      100 * quantile(errors, 0.9));
}

void set_constant(const std::string& text, Options& options) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos)
    throw ConfigError("--constant expects NAME=VALUE");
  const std::string name = text.substr(0, equals);
  const double value = std::stod(text.substr(equals + 1));
  const std::map<std::string, double*> known = {
      {"tile_overhead_s", &options.constants.tile_overhead_s},
      {"memory_efficiency", &options.constants.memory_efficiency},
      {"eager_passes", &options.programs.eager_passes},
      {"device_spread", &options.constants.device_spread},
      {"contention", &options.constants.contention},
      {"blocked_host_s", &options.programs.blocked_host_s},
      {"off_lines", &options.constants.off_lines},
      {"off_vectors", &options.constants.off_vectors}};
  if (const auto found = known.find(name); found != known.end())
    *found->second = value;
  else if (name.find('.') != std::string::npos)
    options.devices[name] = value;
  else
    throw ConfigError(fmt::format("--constant {}: no such constant", name));
}

// "h100.sustained" and "h100.flash2", of every machine whose name begins so.
void change_device(
    const std::map<std::string, double>& changes,
    machine::Machine& machine) {
  for (const auto& [key, value] : changes) {
    const std::string field = key.substr(key.find('.') + 1);
    if (!machine.name.starts_with(key.substr(0, key.find('.'))))
      continue;
    if (field == "sustained")
      machine.device.sustained = value;
    else if (field.starts_with("flash"))
      machine.device.attention.at(
          static_cast<size_t>(std::stoi(field.substr(5)) - 1)) = value;
    else
      throw ConfigError(fmt::format("--constant {}: no such constant", key));
  }
}

Options parse_arguments(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--runs")
      options.lists_runs = true;
    else if (argument == "--constant" && i + 1 < argc)
      set_constant(argv[++i], options);
    else if (options.path.empty() && !argument.starts_with("-"))
      options.path = argument;
    else
      throw ConfigError(fmt::format(
          "'{}': plan_published FILE.csv [--runs] [--constant NAME=VALUE ...]",
          argument));
  }
  if (options.path.empty())
    throw ConfigError("plan_published FILE.csv [--runs]: no file given");
  return options;
}

void run(const Options& options) {
  const std::vector<PublishedRun> runs = read_published_runs(options.path);
  std::vector<Compared> all;
  std::map<std::string, int> left_out;
  for (const PublishedRun& run : runs) {
    std::string why_not;
    std::optional<RunSetup> setup = set_up(run, options.programs, why_not);
    if (setup && !published_seconds(run, setup->training)) {
      setup.reset();
      why_not = "no time (out of memory)";
    }
    if (!setup) {
      ++left_out[why_not];
      continue;
    }
    setup->training.constants = options.constants;
    change_device(options.devices, setup->training.machine);
    all.push_back(compare(run, std::move(*setup)));
  }
  if (options.lists_runs) {
    for (const Compared& compared : all)
      print_run(compared);
    fmt::print("\n");
  }
  fmt::print("{} of {} runs compared; left out:", all.size(), runs.size());
  for (const auto& [reason, count] : left_out)
    fmt::print(" {} ({})", count, reason);
  fmt::print("\n\n");
  print_sources(all);
  print_sweeps(all);
  print_memory(all);
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  try {
    brigade::bench::run(brigade::bench::parse_arguments(argc, argv));
    return 0;
  } catch (const brigade::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
