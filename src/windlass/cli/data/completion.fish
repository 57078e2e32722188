function __windlass_find
    set -l words (commandline -opc) (commandline -ct)
    set -g __windlass_found (windlass completion words -- $words[2..-1] 2>/dev/null)
    test (count $__windlass_found) -gt 0
end
complete -c windlass -n __windlass_find -f -a '$__windlass_found'
