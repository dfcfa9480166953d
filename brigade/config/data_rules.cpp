#include "brigade/config/rules.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "brigade/options/choice.h"
#include "brigade/options/dataset.h"
#include "brigade/options/preference.h"

namespace brigade {
namespace {

using Problems = std::vector<std::string>;

// What a loss of pairs asks of the data and the batch.
void check_pairs(const TrainConfig& config, Problems& problems) {
  const LossOptions& loss = config.training.loss;
  if (!loss.is_of_pairs())
    return;
  const auto refuse = [&](const std::string& what) {
    problems.push_back(fmt::format(
        "[config] /training/loss = \"{}\" {}", to_string(loss.kind), what));
  };
  if (config.training.micro_batch_size % 2 != 0)
    refuse(fmt::format(
        "with /training/micro_batch_size = {}: it counts sequences, two of "
        "each pair; make it even",
        config.training.micro_batch_size));
  if (config.dataset.text || !config.dataset.mixture.empty())
    refuse(
        "reads one dataset of pairs, made by `brigade prepare --chat`: give "
        "its path as /dataset/name");
  if (config.dataset.document_epochs || config.dataset.reset_attention ||
      config.dataset.packing != Packing::kNone)
    refuse(
        "has one answer in each sequence, so that /dataset/document_epochs, "
        "/dataset/reset_attention and /dataset/packing mean nothing: leave "
        "them out");
  if (config.distributed.rounds.local_steps > 0)
    refuse(
        "with /distributed/local_steps: groups that train apart do not learn "
        "from pairs yet; set local_steps to 0");
}

// What a teacher asks of the data: it has read one dataset, and each of its
// tokens after those that the student has before it.
void check_teacher(const TrainConfig& config, Problems& problems) {
  const DatasetConfig& dataset = config.dataset;
  const bool distills = config.training.loss.kind == LossKind::kDistill;
  if (!distills && !dataset.teacher.empty())
    problems.push_back(fmt::format(
        "[config] /dataset/teacher = \"{}\" has no meaning with /training/loss "
        "= \"{}\"; set loss to \"distill\"",
        dataset.teacher,
        to_string(config.training.loss.kind)));
  if (!distills)
    return;
  const auto refuse = [&](const std::string& what) {
    problems.push_back("[config] /training/loss = \"distill\" " + what);
  };
  if (dataset.teacher.empty())
    refuse(fmt::format(
        "needs a teacher's log-probabilities: write them once with `brigade "
        "evaluate --run TEACHER --dataset {} --top-k FILE {}`, and give the "
        "file as /dataset/teacher",
        dataset.name.empty() ? "PREFIX" : dataset.name,
        dataset.packing != Packing::kNone
            ? "--by-document"
            : fmt::format("--seq-length {}", config.training.seq_length)));
  if (dataset.text || !dataset.mixture.empty())
    refuse(
        "reads one dataset, from which the teacher's file was made: give its "
        "path as /dataset/name");
  const bool is_packed = dataset.packing != Packing::kNone;
  if (dataset.document_epochs || (dataset.reset_attention && !is_packed))
    refuse(
        "needs each token after those that the teacher read before it: leave "
        "/dataset/document_epochs and /dataset/reset_attention out; with "
        "/dataset/packing attention stays inside a document");
  if (is_packed && dataset.long_documents == LongDocuments::kSplit)
    refuse(
        "with /dataset/long_documents = \"split\": the teacher read documents "
        "whole; set it to skip or cut");
}

// How windows are chosen, and which parts they come from.
void check_sampling(const TrainConfig& config, Problems& problems) {
  const DatasetConfig& dataset = config.dataset;
  if (dataset.shuffle_block > 0 && dataset.document_epochs)
    problems.push_back(fmt::format(
        "[config] /dataset/shuffle_block = {} has no meaning with "
        "/dataset/document_epochs = true, which takes documents from the whole "
        "dataset; leave one out",
        dataset.shuffle_block));
  // The loss of each part has its path as its name.
  if (!dataset.eval_parts || config.training.eval_every == 0)
    return;
  std::set<std::string> names;
  for (const MixturePart& part : dataset.mixture) {
    if (!names.insert(part.name).second)
      problems.push_back(fmt::format(
          "[config] /dataset/mixture names \"{}\" twice, with "
          "/dataset/eval_parts = true; give it once, with the sum of its "
          "weights",
          part.name));
  }
}

}  // namespace

void check_data(const TrainConfig& config, Problems& problems) {
  check_sampling(config, problems);
  check_pairs(config, problems);
  check_teacher(config, problems);
}

}  // namespace brigade
