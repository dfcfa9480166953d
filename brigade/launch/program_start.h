// What each of Brigade's own programs does before anything else.
#pragma once

namespace brigade {

// Called by main(), while there is one thread:
//   * where standard input, output or error is closed (`brigade train >&-`),
//     /dev/null takes its place. Otherwise the next pipe or file that the
//     program opens would get the number 1, and be closed or printed into.
//     Writing to standard output still fails: a result would be lost;
//   * a write beyond the limit of file sizes (`ulimit -f`) fails with EFBIG, as
//     one to a full disk does, where SIGXFSZ would end the process. Where the
//     signal was ignored before, it stays so. Programs that this one starts
//     have the default action again.
void prepare_program();

// From here on a write to a pipe whose reader has gone (`brigade train | head`)
// fails with EPIPE, where SIGPIPE would end the process. What was set for the
// signal before stays; programs that this one starts have the default again.
void outlive_readers();

}  // namespace brigade
