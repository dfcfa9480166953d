#include "brigade/schedule/schedule_drawing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace brigade {
namespace {

std::string label(const Schedule& schedule, const Action& action) {
  std::string text =
      fmt::format("{}{}", letter_of(action.kind), action.micro_batch);
  // 26 letters; past them the stage's number within the rank.
  const int chunk = action.stage / schedule.ranks;
  if (schedule.virtual_stages > 26)
    text += fmt::format(".{}", chunk);
  else if (schedule.virtual_stages > 1)
    text += static_cast<char>('a' + chunk);
  return text;
}

// What each slot of a rank shows, unpadded.
std::vector<std::string> slots_of(
    const Schedule& schedule,
    const std::vector<TimedAction>& actions,
    size_t slots) {
  std::vector<std::string> row(slots, ".");
  for (const TimedAction& timed : actions) {
    const auto begin = static_cast<size_t>(std::lround(timed.start));
    const auto end = static_cast<size_t>(std::lround(timed.end));
    row[begin] = label(schedule, timed.action);
    for (size_t slot = begin + 1; slot < end; ++slot)
      row[slot] = std::string(row[begin].size(), '-');
  }
  return row;
}

std::string blocks(
    const Schedule& schedule,
    const std::vector<std::vector<std::string>>& rows,
    const DrawingOptions& options) {
  size_t width = 1;
  for (const auto& row : rows) {
    for (const std::string& slot : row)
      width = std::max(width, slot.size());
  }
  const size_t slots = rows.front().size();
  const auto rank_digits = fmt::formatted_size("{}", schedule.ranks - 1);
  const auto used = static_cast<int>(rank_digits + 7);  // "rank 0 |"
  const auto per_block = static_cast<size_t>(
      std::max(1, (options.max_columns - used) / static_cast<int>(width + 1)));
  std::string text;
  size_t begin = 0;
  for (int block = 0; begin < slots && block < options.max_blocks;
       ++block, begin += per_block) {
    if (block > 0)
      text += fmt::format("slots {} on\n", begin);
    const size_t end = std::min(slots, begin + per_block);
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      std::string line = fmt::format("rank {:>{}} |", rank, rank_digits);
      for (size_t slot = begin; slot < end; ++slot)
        line += fmt::format(" {:<{}}", rows[rank][slot], width);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  if (begin < slots)
    text += fmt::format("({} more slots are not drawn)\n", slots - begin);
  return text;
}

std::string summary(const Schedule& schedule, const Simulation& clock) {
  std::string text = "rank  stages            waits   live activations\n";
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<int> stages;
    for (int stage = rank; stage < schedule.stages(); stage += schedule.ranks)
      stages.push_back(stage);
    const auto row = static_cast<size_t>(rank);
    text += fmt::format(
        "{:>4}  {:<16} {:>5.1f}%   {}\n",
        rank,
        fmt::format("{}", fmt::join(stages, " ")),
        100 * clock.rank_bubble[row],
        clock.peak_live_activations[row]);
  }
  return text +
         fmt::format(
             "bubble {:.1f}% of {:.0f} slots{}\n",
             100 * clock.bubble,
             clock.makespan,
             schedule.virtual_stages == 1
                 ? std::string()
                 : fmt::format(
                       "; a slot and a live activation are 1/{} of a rank's "
                       "layers",
                       schedule.virtual_stages));
}

}  // namespace

std::string draw_schedule(
    const Schedule& schedule,
    const DrawingOptions& options) {
  // Whole slots, so that the drawing is the clock and not a rounding of it.
  const Simulation clock = simulate(schedule, SimulationCosts{});
  const auto slots = static_cast<size_t>(std::lround(clock.makespan));
  std::vector<std::vector<std::string>> rows;
  for (const auto& actions : clock.per_rank)
    rows.push_back(slots_of(schedule, actions, slots));
  return fmt::format(
             "{}: {} ranks, {} stages, {} micro-batches\n",
             schedule.name,
             schedule.ranks,
             schedule.stages(),
             schedule.micro_batches) +
         blocks(schedule, rows, options) + summary(schedule, clock);
}

}  // namespace brigade
