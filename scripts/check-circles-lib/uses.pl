#!/usr/bin/env perl
# uses.pl CRATE/src: prints which file of a crate uses which items of another one. A line has the two
# files and the items, with tabs between them.
#
# Reads Rust as text. Of a path it follows modules, imports and re-exports to the file that defines the
# item. It does not see methods, because only the compiler knows their type.
use strict;
use warnings;

my $source = shift;
my (%file, %code, %items, %imports, %globs);

# The modules and their files: `storage/open.rs` is `storage::open`, and `lib.rs` has an empty name.
sub modules {
    my ($folder, $module) = @_;
    for my $path (sort glob "$folder/*.rs") {
        my ($name) = $path =~ m{(\w+)\.rs$};
        next if $name =~ /^test/ || ($module eq '' && $name eq 'main');
        my $inner = $module eq '' && $name eq 'lib' ? '' : join '::', grep { $_ ne '' } $module, $name;
        $file{$inner} = $path;
        modules("$folder/$name", $inner) if -d "$folder/$name" && $name ne 'lib';
    }
}

# The code of a file without comments, literals and tests.
sub code {
    my ($path) = @_;
    open my $in, '<', $path or die "$path: $!\n";
    my $text = do { local $/; <$in> };
    $text =~ s{
        (?<comment> //[^\n]* | /\*.*?\*/ )
      | (?<literal> \bb?r(?<hashes>\#*)".*?"\k<hashes> | b?"(?:[^"\\]|\\.)*" | b?'(?:[^'\\\n]|\\(?:x..|u\{.*?\}|.))' )
    }{ defined $+{literal} ? '""' : '' }gsex;
    my $braces = qr/(?<braces>\{(?:[^{}]++|(?&braces))*\})/;
    $text =~ s/#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*[^;{]*(?:;|$braces;?)//gs;
    return $text;
}

# The leaves of a tree of imports such as `a::{b, c as d, e::*}`: pairs of a name and its path.
sub leaves {
    my ($tree, @prefix) = @_;
    $tree =~ s/^\s+|\s+$//g;
    return () if $tree eq '';
    if ($tree =~ /^((?:\w+::)*)\{(.*)\}$/s) {
        my ($inside, $depth, @parts) = ($2, 0, '');
        @prefix = (@prefix, split /::/, $1);
        for my $char (split //, $inside) {
            $depth++ if $char eq '{';
            $depth-- if $char eq '}';
            if ($char eq ',' && !$depth) { push @parts, '' } else { $parts[-1] .= $char }
        }
        return map { leaves($_, @prefix) } @parts;
    }
    my ($path, $alias) = $tree =~ /^(\S+?)(?:\s+as\s+(\w+))?$/ or return ();
    my @path = (@prefix, split /::/, $path);
    pop @path if @path > 1 && $path[-1] eq 'self';
    return [$alias // $path[-1], \@path];
}

# Reads a module: what it defines, imports and re-exports.
sub read_module {
    my ($module) = @_;
    my $text = code($file{$module});
    while ($text =~ s/(?<![\w:])(pub(?:\([\w\s:]+\))?\s+)?use\s+([^;]+);//) {
        my ($is_pub, $tree) = (defined $1, $2);
        for my $leaf (leaves($tree)) {
            my ($name, $path) = @$leaf;
            if ($name eq '*') {
                push @{ $globs{$module} }, [@$path[0 .. $#$path - 1]];
            } else {
                $imports{$module}{$name} = { path => $path, is_pub => $is_pub };
            }
        }
    }
    $code{$module} = $text;
    my $outer = $text;
    my $braces = qr/(?<braces>\{(?:[^{}]++|(?&braces))*\})/;
    $outer =~ s/$braces/{}/g;
    $items{$module}{$1} = 1
      while $outer =~ /\b(?:const|static|fn|struct|enum|union|trait|type|mod|macro_rules!)\s+(\w+)/g;
}

# resolve MODULE [SEGMENT…]: the module that defines the item of a path, and its name. Nothing for an
# item of another crate, for a module, or for a name that is not known here.
sub resolve {
    my ($module, $path, $depth) = @_;
    return () if $depth > 20;
    my @path = @$path;
    my $at = $module;
    my $begins = shift @path;
    if ($begins eq 'crate') { $at = '' }
    elsif ($begins eq 'self') { }
    elsif ($begins eq 'super') { $at =~ s/(?:^|::)\w+$// }
    else { return step($module, $begins, \@path, $depth, 1) }
    while (@path && $path[0] eq 'super') { shift @path; $at =~ s/(?:^|::)\w+$// }
    return () unless @path;
    my $name = shift @path;
    return step($at, $name, \@path, $depth, 0);
}

# Takes one step: NAME in the module, and then the rest of the path.
sub step {
    my ($at, $name, $rest, $depth, $first) = @_;
    my $inner = $at eq '' ? $name : "${at}::$name";
    if (exists $file{$inner}) {
        return () unless @$rest;
        my ($next, @rest) = @$rest;
        return step($inner, $next, \@rest, $depth + 1, 0);
    }
    return ($at, $name) if $items{$at}{$name};
    if (my $import = $imports{$at}{$name}) {
        my @path = @{ $import->{path} };
        return () if @path == 1 && $path[0] eq $name;
        return resolve($at, [@path, @$rest], $depth + 1);
    }
    for my $glob (@{ $globs{$at} // [] }) {
        my @found = resolve($at, [@$glob, $name, @$rest], $depth + 1);
        return @found if @found && $items{ $found[0] }{ $found[1] };
    }
    # What a macro defines, or a path of another crate.
    return $first ? () : ($at, $name);
}

modules($source, '');
read_module($_) for sort keys %file;

my %uses;
for my $module (sort keys %file) {
    my @paths = map { $_->{path} } grep { !$_->{is_pub} } values %{ $imports{$module} };
    # What a module imports from another one by a path, and what it re-exports and uses itself.
    push @paths, [split /::/, $1] while $code{$module} =~ /(?<![\w:.])((?:\w+::)+\w+)/g;
    for my $name (grep { $imports{$module}{$_}{is_pub} } keys %{ $imports{$module} }) {
        my $named = $name =~ /^[A-Z]/ ? qr/\b$name\b/ : qr/(?<![\w.:])(?<!fn )$name(?:\(|::|!)/;
        push @paths, [$name] if $code{$module} =~ $named;
    }
    for my $glob (@{ $globs{$module} // [] }) {
        my %seen;
        $seen{$1} = 1 while $code{$module} =~ /(?<![\w.:])(\w+)/g;
        for my $name (keys %seen) {
            my @found = resolve($module, [@$glob, $name], 0);
            push @paths, [@$glob, $name] if @found && $items{ $found[0] }{$name};
        }
    }
    for my $path (@paths) {
        my ($where, $item) = resolve($module, $path, 0) or next;
        # A module belongs to the ones around it.
        next if $where eq '' || "${module}::" =~ /^\Q$where\E::/;
        $uses{ $file{$module} }{ $file{$where} }{$item} = 1;
    }
}
for my $user (sort keys %uses) {
    for my $used (sort keys %{ $uses{$user} }) {
        print join("\t", $user, $used, join ', ', sort keys %{ $uses{$user}{$used} }), "\n";
    }
}
