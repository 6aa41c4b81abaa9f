#!/usr/bin/env perl
# circles.pl: reads the lines of uses.pl, and prints each circle: its files or folders, and beneath each
# one what it uses of the others. Fails if there is one.
use strict;
use warnings;

my (%uses, %index, %low, %on_stack, @stack, @circles);
while (<>) {
    chomp;
    my ($user, $used, $items) = split /\t/;
    next if $user eq $used;
    my $known = $uses{$user}{$used};
    $uses{$user}{$used} = defined $known ? "$known, $items" : $items;
}

# Tarjan's algorithm: the files from which each one leads to all others.
my $count = 0;
sub visit {
    my ($file) = @_;
    $index{$file} = $low{$file} = $count++;
    push @stack, $file;
    $on_stack{$file} = 1;
    for my $used (sort keys %{ $uses{$file} // {} }) {
        if (!exists $index{$used}) {
            visit($used);
            $low{$file} = $low{$used} if $low{$used} < $low{$file};
        } elsif ($on_stack{$used} && $index{$used} < $low{$file}) {
            $low{$file} = $index{$used};
        }
    }
    return if $low{$file} != $index{$file};
    my @circle;
    do {
        push @circle, pop @stack;
        $on_stack{ $circle[-1] } = 0;
    } until $circle[-1] eq $file;
    push @circles, [sort @circle] if @circle > 1;
}
no warnings 'recursion';
exists $index{$_} or visit($_) for sort keys %uses;

for my $circle (@circles) {
    my %in = map { $_ => 1 } @$circle;
    print scalar(@$circle), " use each other in a circle:\n";
    for my $user (@$circle) {
        print "  $user\n";
        print "    $_: $uses{$user}{$_}\n" for grep { $in{$_} } sort keys %{ $uses{$user} };
    }
}
exit(@circles ? 1 : 0);
